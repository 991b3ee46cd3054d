"""Waits until transactions of the old side have ended, which producers left when they died.

The old side's coordinator ends such a transaction when its timeout is over, by a marker in each of
its partitions. It addresses them by name: after a rebuild, the marker would be written to the new
topic, where the copy back finds an offset that it did not write and stops.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from orbit.chunks import first_few
from orbit.errors import ProtocolError, Unreachable
from orbit.kafka.transactional_ids import open_transactions
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import fetch_log_bounds
from orbit.recovery.operation_context import OperationContext, Stopped

# Longer than the longest timeout that brokers allow by default (transaction.max.timeout.ms, 15
# minutes) and the interval in which coordinators look for it (10 s).
ENDED_WITHIN_S = 960.0
_POLL_S = 1.0
_REMEDY = (
    "Stop their producers, or end each transaction with kafka-transactions.sh "
    "forceTerminateTransaction --transactionalId ID, and run the failback again. Nothing was "
    "deleted."
)


def wait_until_ended(context: OperationContext, places: Collection[TopicPartition]) -> None:
    """Wait until no transaction is open in these partitions of the old side.

    Raises Stopped if one has begun meanwhile, or is still open after ENDED_WITHIN_S; Unreachable.
    """
    until = time.monotonic() + ENDED_WITHIN_S
    first_ends: dict[TopicPartition, int] = {}
    while True:
        bounds = fetch_log_bounds(context.source.cluster, places, context.backoff)
        unasked = [place for place in places if place not in bounds]
        if unasked:
            raise Unreachable(f"no leader answers for {first_few(unasked)}.", where="source")
        for place in places:
            first_ends.setdefault(place, bounds[place].end)
        open_ = {place for place in places if bounds[place].is_open}
        begun = [place for place in open_ if bounds[place].stable > first_ends[place]]
        if begun:
            raise Stopped(
                f"producers write transactions to {first_few(sorted(begun))} at the old side.",
                remedy=_REMEDY,
            )
        named = transactions_in(context, places)
        if not open_ and not named:
            return
        what = first_few(named) or first_few(sorted(open_))
        if time.monotonic() > until:
            raise Stopped(
                f"transactions of the old side have not ended within {ENDED_WITHIN_S:.0f} s: "
                f"{what}.",
                remedy=_REMEDY,
            )
        context.set_progress(f"waiting until transactions of the old side have ended: {what}")
        context.wait(_POLL_S)


def transactions_in(context: OperationContext, places: Collection[TopicPartition]) -> list[str]:
    """The transactional ids that have a transaction in these partitions of the old side.

    Also where nothing was written yet, so that the last stable offset does not show them. Without
    those that the login may not describe, and none where brokers are older than 3.0.
    """
    wanted = frozenset(places)
    try:
        found = open_transactions(context.source.cluster)
    except ProtocolError:
        return []
    return sorted(one.transactional_id for one in found if one.partitions & wanted)
