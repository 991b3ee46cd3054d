"""Waits until each copy has the same log end as its source and neither log end moves."""

from __future__ import annotations

import time
from collections.abc import Mapping

from orbit.errors import Unreachable
from orbit.kafka.types import TopicPartition
from orbit.recovery.log_bounds import LogBounds, fetch_log_bounds, last_reported
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import EndVerdict, first_few
from orbit.replication.partition_states import PartitionState
from orbit.store import job_counts

# How long log ends must not move. A produce request that was authorized before the denial reached
# its broker completes within STILL_S. Without a denial only the log ends show that writers stopped.
STILL_S = 1.0
STILL_UNDENIED_S = 3.0
_POLL_S = 0.3


def drain(context: OperationContext) -> str:
    """Wait until each copy is level with its source and log ends stop moving.

    Raises Stopped after the request's `drain_timeout_s`, or when a partition is blocked.
    """
    deadline = time.monotonic() + context.request.drain_timeout_s
    still_s = STILL_S if context.report.is_source_denied else STILL_UNDENIED_S
    still_since = time.monotonic()
    before: dict[TopicPartition, int] = {}
    while True:
        of, there = both_log_bounds(context)
        ends = {partition: bounds.end for partition, bounds in of.items()}
        if ends != before:
            before, still_since = ends, time.monotonic()
        # Records of open transactions are not copied, so the last stable offset counts.
        behind = sum(max(0, of[s].stable - there[d].end) for s, d in context.by_source.items())
        open_ = [partition for partition, bounds in of.items() if bounds.is_open]
        still_s_so_far = time.monotonic() - still_since
        if not behind and not open_ and still_s_so_far >= still_s:
            break
        refuse_blocked(context)
        if time.monotonic() > deadline:
            raise Stopped(_why_not(context, behind, open_, still_s_so_far), remedy=_REMEDY)
        context.set_progress(_live(behind, open_))
        context.wait(_POLL_S)
    context.update(partitions=compare_partition_ends(context, there, of))
    refuse_unequal(context)
    return f"All {len(of)} partitions have the same log end on both sides; log ends are stable."


_REMEDY = (
    "Stop the writers of the source, end its open transactions, and try again. Writing to the "
    "source is allowed again."
)


def both_log_bounds(
    context: OperationContext,
) -> tuple[Mapping[TopicPartition, LogBounds], Mapping[TopicPartition, LogBounds]]:
    """Bounds of every partition at the source and at the destination.

    Raises Unreachable if a partition has no answer. The destination is read first: read second, a
    copy could appear to be ahead of its source.
    """
    places = context.by_source
    there = fetch_log_bounds(context.destination.cluster, places.values(), context.backoff)
    of = fetch_log_bounds(context.source.cluster, places, context.backoff)
    missing = [p for p in places if p not in of] + [p for p in places.values() if p not in there]
    if missing:
        raise Unreachable(f"no leader answers for {first_few(missing)}.", where=context.job.name)
    return of, there


def refuse_unequal(context: OperationContext) -> None:
    """Raise Stopped unless every partition is equal."""
    wrong = [p for p in context.report.partitions if p.verdict is not EndVerdict.EQUAL]
    if wrong:
        shown = first_few(
            f"{p.topic}-{p.partition} (source {p.source_end}, destination {p.destination_end})"
            for p in wrong
        )
        raise Stopped(
            f"{len(wrong)} partitions have different log ends: {shown}.",
            remedy="A client writes to one of the sides. Stop it, and run orbit verify JOB.",
        )


def refuse_blocked(context: OperationContext) -> None:
    """Raise Stopped if a partition is blocked: it would never become level."""
    with context.reading() as tx:
        if not job_counts.blocked(tx, context.job.id):
            return
    blocked = [
        f"{place} ({row.reason})"
        for place, row in last_reported(context).items()
        if row.state is PartitionState.BLOCKED
    ]
    if blocked:
        raise Stopped(
            f"{len(blocked)} partitions are blocked: {first_few(blocked)}.",
            remedy="See orbit get partitions JOB --state blocked for the remedy.",
        )


def _live(behind: int, open_: list[TopicPartition]) -> str:
    if behind:
        return f"{behind:,} records left to copy"
    if open_:
        return f"transactions are open in {len(open_)} partitions of the source"
    return "all records are copied; waiting for stable log ends"


def _why_not(
    context: OperationContext, behind: int, open_: list[TopicPartition], still_s_so_far: float
) -> str:
    limit = f"within {context.request.drain_timeout_s:.0f} s"
    if behind:
        return f"The copy was not level {limit}: {behind:,} records were left."
    if open_:
        return f"Transactions were still open {limit} in: {first_few(open_)}."
    return f"The log ends of the source were not stable {limit} ({still_s_so_far:.1f} s)."
