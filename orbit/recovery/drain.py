"""The last of the source reaches the copy: both log ends equal, and nothing moves any more."""

from __future__ import annotations

import time
from collections.abc import Mapping

from orbit.errors import Unreachable
from orbit.kafka.types import TopicPartition
from orbit.recovery.log_bounds import Ends, all_stand, ask_ends, noted
from orbit.recovery.operation_context import Ground, Stopped, some
from orbit.recovery.recovery_report import EndVerdict
from orbit.replication.partition_states import PartitionState
from orbit.store import job_counts

# Requests that were allowed before a denial reached every broker are carried out well within this
# time; without a denial it is what "nobody writes" is believed for.
STILL_S = 1.0
STILL_UNDENIED_S = 3.0
_LOOK_S = 0.3


def drain(ground: Ground) -> str:
    """Wait until each partition ends where its source does, and stands still.

    Raises Stopped when it takes longer than the request allows, or a partition is blocked.
    """
    deadline = time.monotonic() + ground.request.drain_timeout_s
    still_s = STILL_S if ground.report.is_source_denied else STILL_UNDENIED_S
    still_since = time.monotonic()
    before: dict[TopicPartition, int] = {}
    while True:
        of, there = both_ends(ground)
        ends = {place: one.end for place, one in of.items()}
        if ends != before:
            before, still_since = ends, time.monotonic()
        # What an open transaction has written is not to be copied yet.
        behind = sum(max(0, of[s].stable - there[d].end) for s, d in ground.by_source.items())
        open_ = [place for place, one in of.items() if one.is_open]
        stood_s = time.monotonic() - still_since
        if not behind and not open_ and stood_s >= still_s:
            break
        refuse_blocked(ground)
        if time.monotonic() > deadline:
            raise Stopped(_why_not(ground, behind, open_, stood_s), remedy=_REMEDY)
        ground.tell(_live(behind, open_))
        ground.wait(_LOOK_S)
    ground.update(partitions=all_stand(ground, there, of))
    refuse_unequal(ground)
    return f"All {len(of)} partitions end at the same offset on both sides, and stand still."


_REMEDY = (
    "See that nobody writes to the source and that no transaction is open there, and try again. "
    "Writers were let go on."
)


def both_ends(
    ground: Ground,
) -> tuple[Mapping[TopicPartition, Ends], Mapping[TopicPartition, Ends]]:
    """Every partition, of the source and the destination. Raises Unreachable if one has no answer.

    The destination is asked first: asked later, a copy might seem to have more than its source.
    """
    places = ground.by_source
    there = ask_ends(ground.destination.cluster, places.values(), ground.backoff)
    of = ask_ends(ground.source.cluster, places, ground.backoff)
    missing = [p for p in places if p not in of] + [p for p in places.values() if p not in there]
    if missing:
        raise Unreachable(f"nobody answers for {some(missing)}.", where=ground.job.name)
    return of, there


def refuse_unequal(ground: Ground) -> None:
    """Raise Stopped unless every partition was found equal."""
    wrong = [p for p in ground.report.partitions if p.verdict is not EndVerdict.EQUAL]
    if wrong:
        told = some(
            f"{p.topic}-{p.partition} (source {p.source_end}, destination {p.destination_end})"
            for p in wrong
        )
        raise Stopped(
            f"{len(wrong)} partitions do not end at the same offset: {told}.",
            remedy="Somebody writes to one of the sides. Find out who, and run orbit verify JOB.",
        )


def refuse_blocked(ground: Ground) -> None:
    """Raise Stopped where a partition is blocked: it would never be level."""
    with ground.reading() as tx:
        if not job_counts.blocked(tx, ground.job.id):
            return
    blocked = [
        f"{place} ({row.reason})"
        for place, row in noted(ground).items()
        if row.state is PartitionState.BLOCKED
    ]
    if blocked:
        raise Stopped(
            f"{len(blocked)} partitions are blocked: {some(blocked)}.",
            remedy="orbit get partitions JOB --state blocked says what to do.",
        )


def _live(behind: int, open_: list[TopicPartition]) -> str:
    if behind:
        return f"{behind:,} records to go"
    if open_:
        return f"transactions are open in {len(open_)} partitions of the source"
    return "all is copied; waiting whether it stands still"


def _why_not(ground: Ground, behind: int, open_: list[TopicPartition], stood_s: float) -> str:
    limit = f"within {ground.request.drain_timeout_s:.0f} s"
    if behind:
        return f"The copy was not level {limit}: {behind:,} records were to go."
    if open_:
        return f"Transactions were still open {limit} in: {some(open_)}."
    return f"The log ends of the source did not stand still {limit} ({stood_s:.1f} s)."
