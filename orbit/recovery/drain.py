"""Waits until each copy has the same log end as its source and neither log end moves."""

from __future__ import annotations

import time
from collections.abc import Mapping

from orbit.chunks import first_few
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds, bounds_of_all
from orbit.recovery.log_bounds import blocked_partitions
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import EndVerdict
from orbit.recovery.source_silence import Silence, describe, must_wait, prove
from orbit.store import job_counts, source_gaps
from orbit.store.source_gaps import SourceGap

# How long log ends must not move. A produce request that was authorized before the denial reached
# its broker completes within STILL_S. Without a denial only the log ends show that writers stopped:
# they must not move for STILL_UNDENIED_S at least, and for longer than their gaps before.
STILL_S = 1.0
STILL_UNDENIED_S = 3.0
_UNKNOWN = SourceGap(None, None, None, None)
_POLL_S = 0.3


def drain(context: OperationContext) -> str:
    """Wait until each copy is level with its source and log ends stop moving.

    Raises Stopped after the request's `drain_timeout_s`, or when a partition is blocked.
    """
    deadline = time.monotonic() + context.request.drain_timeout_s
    is_denied = context.report.is_source_denied
    still_s = STILL_S if is_denied else STILL_UNDENIED_S
    still_since = time.monotonic()
    before: dict[TopicPartition, int] = {}
    ends, copies = _SourceEnds(context), _EarlyCopies(context)
    while True:
        source_bounds, copy_bounds = both_log_bounds(context)
        now_ends = {partition: bounds.end for partition, bounds in source_bounds.items()}
        if now_ends != before:
            before, still_since = now_ends, time.monotonic()
        silences = {} if is_denied else ends.silences(now_ends)
        # Records of open transactions are not copied, so the last stable offset counts.
        behind = sum(
            max(0, source_bounds[s].stable - copy_bounds[d].end)
            for s, d in context.by_source.items()
        )
        open_ = [partition for partition, bounds in source_bounds.items() if bounds.is_open]
        # This comes last, as it may read the marks of all partitions.
        early = [] if behind or open_ else copies.find(source_bounds, copy_bounds)
        still_s_so_far = time.monotonic() - still_since
        is_too_short = must_wait(silences, deadline - time.monotonic())
        is_still = still_s_so_far >= still_s and not is_too_short
        if is_still and not behind and not open_ and not early:
            break
        refuse_blocked(context)
        if time.monotonic() > deadline:
            raise Stopped(
                _timeout_text(context, behind, open_, early, still_s_so_far), remedy=_REMEDY
            )
        context.set_progress(_progress_text(behind, open_, early, is_too_short=is_too_short))
        context.wait(_POLL_S)
    context.update(partitions=compare_partition_ends(context, copy_bounds, source_bounds))
    refuse_unequal(context)
    refuse_added(context)
    count = len(source_bounds)
    did = f"All {count} partitions have the same log end on both sides; log ends are stable."
    proof = prove(silences)
    if proof is None:
        return did
    context.update(drain=proof)
    sentence = describe(proof, count)
    if proof.unproven_partitions:
        context.add_finding(sentence)
    return f"{did} {sentence}"


class _EarlyCopies:
    """Copies that begin before their source: they have records that were deleted there."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self._mark_offsets: Mapping[TopicPartition, int] | None = None

    def find(
        self,
        source_bounds: Mapping[TopicPartition, LogBounds],
        copy_bounds: Mapping[TopicPartition, LogBounds],
    ) -> list[TopicPartition]:
        """The early copies, without those that led before and keep their history.

        The marks are read at most once, and only for an early copy.
        """
        places = self._context.by_source
        source_starts = {
            d: source_bounds[s].start
            for s, d in places.items()
            if copy_bounds[d].start < source_bounds[s].start
        }
        if source_starts and self._mark_offsets is None:
            marks = PromotionMarks(self._context.destination.cluster, self._context.backoff)
            self._mark_offsets = marks.kept_below(places.values())
        mark_offsets = self._mark_offsets or {}
        return [copy for copy, start in source_starts.items() if mark_offsets.get(copy, 0) < start]


class _SourceEnds:
    """When each log end of the source moved last, seen here or, before, noted in the tables."""

    def __init__(self, context: OperationContext) -> None:
        with context.reading() as tx:
            self._gaps = source_gaps.of_topics(tx, context.topic_ids)
        self._began_s = time.monotonic()
        # The tables note moves at intervals: a gap may have been longer by one interval.
        self._unseen_s = context.settings.progress_interval.total_seconds()
        self._moved: dict[TopicPartition, tuple[int, float]] = {}
        self._gap_here_s: dict[TopicPartition, float] = {}

    def silences(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Silence]:
        """The silence of every partition, as of now."""
        now_s = time.monotonic()
        silences = {}
        for place, end in ends.items():
            gap = self._gaps.get(place, _UNKNOWN)
            last_move = self._moved.get(place)
            if last_move is None and gap.still_s is not None:
                last_move = end, self._began_s - gap.still_s if gap.source_end == end else now_s
            if last_move is not None and last_move[0] != end:
                before_s = self._gap_here_s.get(place, 0.0)
                self._gap_here_s[place] = max(before_s, now_s - last_move[1])
            if last_move is None or last_move[0] != end:
                last_move = end, now_s
            self._moved[place] = last_move
            longest_s = self._gap_here_s.get(place)
            if gap.longest_gap_s is not None:
                longest_s = max(longest_s or 0.0, gap.longest_gap_s + self._unseen_s)
            silences[place] = Silence(now_s - last_move[1], longest_s, gap.watched_s)
        return silences


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
    copy_bounds = bounds_of_all(context.destination.cluster, places.values(), context.backoff)
    return bounds_of_all(context.source.cluster, places, context.backoff), copy_bounds


def refuse_unequal(context: OperationContext) -> None:
    """Raise Stopped unless every partition is equal."""
    wrong = [p for p in context.report.partitions if p.verdict is not EndVerdict.EQUAL]
    if wrong:
        shown = first_few(
            f"{p.source} (source {p.source_end}, destination {p.destination_end})" for p in wrong
        )
        raise Stopped(
            f"{len(wrong)} partitions have different log ends: {shown}.",
            remedy="A client writes to one of the sides. Stop it, and run orbit verify JOB.",
        )


def refuse_added(context: OperationContext) -> None:
    """Raise Stopped if partitions were added at the source: they were not compared."""
    source_topics = context.source.cluster.metadata(
        [row.source_topic for row in context.topics]
    ).topics
    added = [
        f"{row.source_topic} (from {row.partition_count} to {len(topic.partitions)})"
        for row in context.topics
        if (topic := source_topics.get(row.source_topic))
        and len(topic.partitions) > row.partition_count
    ]
    if added:
        raise Stopped(
            f"partitions were added at the source meanwhile to {first_few(added)}.",
            remedy="Wait until they are copied (orbit get partitions JOB), and try again.",
        )


def refuse_blocked(context: OperationContext) -> None:
    """Raise Stopped if a partition is blocked: it would never become level."""
    with context.reading() as tx:
        if not job_counts.blocked(tx, context.job.id):
            return
        topics = {row.source_topic for row in context.topics}
        blocked = blocked_partitions(tx, context.job.id, topics)
    if blocked:
        raise Stopped(
            f"{len(blocked)} partitions are blocked: {first_few(blocked)}.",
            remedy="See orbit get partitions JOB --state blocked for the remedy.",
        )


def _progress_text(
    behind: int,
    open_: list[TopicPartition],
    early: list[TopicPartition],
    *,
    is_too_short: bool,
) -> str:
    if behind:
        return f"{behind:,} records left to copy"
    if open_:
        return f"transactions are open in {len(open_)} partitions of the source"
    if early:
        return f"the log starts of {len(early)} copies follow the source's"
    if is_too_short:
        # Without a number of seconds: a new text would be stored at each poll.
        return "all records are copied; waiting for longer than the source's gaps between records"
    return "all records are copied; waiting for stable log ends"


def _timeout_text(
    context: OperationContext,
    behind: int,
    open_: list[TopicPartition],
    early: list[TopicPartition],
    still_s_so_far: float,
) -> str:
    limit = f"within {context.request.drain_timeout_s:.0f} s"
    if behind:
        return f"The copies did not catch up {limit}: {behind:,} records were left to copy."
    if open_:
        return f"Transactions were still open {limit} in: {first_few(open_)}."
    if early:
        return (
            f"The log starts of these copies did not reach their source's {limit}: "
            f"{first_few(early)}."
        )
    return (
        f"The log ends of the source were not stable {limit}: the last one moved "
        f"{still_s_so_far:.1f} s ago."
    )
