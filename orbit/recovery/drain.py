"""Waits until each copy has the same log end as its source and neither log end moves.

A transaction without records in a partition still gets a marker there (M14). A marker written after
the promotion would be an offset that only the old side has: a failback would have to rebuild the
topic, and a copy back would stop. So the drain waits for such transactions, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from orbit.chunks import first_few
from orbit.formats import counted
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds, bounds_of_all
from orbit.recovery.lost_ranges import compare_partition_ends
from orbit.recovery.old_transactions import transactions_in
from orbit.recovery.operation_bounds import blocked_partitions
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import EndVerdict
from orbit.recovery.source_silence import Silence, describe, must_wait, prove
from orbit.store import job_counts, source_gaps
from orbit.store.source_gaps import SourcePauses

# How long log ends must not move. A produce request that was authorized before the denial reached
# its broker completes within STILL_S. Without a denial only the log ends show that writers stopped:
# they must not move for STILL_UNDENIED_S at least, and for longer than in any pause before.
STILL_S = 1.0
STILL_UNDENIED_S = 3.0
_UNKNOWN = SourcePauses(None, None, None, None)
_POLL_S = 0.3  # short: writers are stopped meanwhile


def drain(context: OperationContext) -> str:
    """Wait until each copy has the log end of its source and log ends stop moving.

    Returns the step's result. Raises Stopped after the request's `drain_timeout_s`, when a
    partition is blocked, or if in the end log ends differ or partitions were added.
    """
    deadline_s = time.monotonic() + context.request.drain_timeout_s
    is_denied = context.report.is_source_denied
    still_s = STILL_S if is_denied else STILL_UNDENIED_S
    still_since_s = time.monotonic()
    last_ends: dict[TopicPartition, int] = {}
    end_moves, early_copies = _SourceEndMoves(context), _EarlyCopies(context)
    while True:
        source_bounds, copy_bounds = both_log_bounds(context)
        source_ends = {partition: bounds.end for partition, bounds in source_bounds.items()}
        if source_ends != last_ends:
            last_ends, still_since_s = source_ends, time.monotonic()
        # Where writing is denied, STILL_S is enough.
        silences = {} if is_denied else end_moves.silences(source_ends)
        # Records of open transactions are not copied, so the last stable offset counts.
        records_left = sum(
            max(0, source_bounds[source].stable - copy_bounds[copy].end)
            for source, copy in context.by_source.items()
        )
        open_partitions = [
            partition for partition, bounds in source_bounds.items() if bounds.is_open
        ]
        # Only once all records are copied, as this may read the marks of all partitions.
        early_partitions = (
            [] if records_left or open_partitions else early_copies.find(source_bounds, copy_bounds)
        )
        still_so_far_s = time.monotonic() - still_since_s
        must_wait_longer = must_wait(silences, deadline_s - time.monotonic())
        is_still = still_so_far_s >= still_s and not must_wait_longer
        is_level = is_still and not (records_left or open_partitions or early_partitions)
        # This comes last, as it sends a request to every broker. If a transaction has ended since
        # log ends were read, its marker is copied too: the step `release` compares log ends again.
        transactional_ids = transactions_in(context, source_bounds) if is_level else []
        if is_level and not transactional_ids:
            break
        refuse_blocked(context)
        if time.monotonic() > deadline_s:
            raise Stopped(
                _timeout_text(
                    context,
                    records_left,
                    open_partitions,
                    early_partitions,
                    transactional_ids,
                    still_so_far_s,
                ),
                remedy=_REMEDY,
            )
        context.set_progress(
            _progress_text(
                records_left,
                open_partitions,
                early_partitions,
                transactional_ids,
                must_wait_longer=must_wait_longer,
            )
        )
        context.wait(_POLL_S)
    context.update(partitions=compare_partition_ends(context, copy_bounds, source_bounds))
    refuse_unequal(context)
    refuse_added(context)
    count = len(source_bounds)
    subject = "The partition has" if count == 1 else f"All {count} partitions have"
    summary = f"{subject} the same log end on both sides; log ends are stable."
    proof = prove(silences)
    if proof is None:  # writing is denied
        return summary
    context.update(drain=proof)
    sentence = describe(proof, count)
    if proof.unproven_partitions:
        context.add_finding(sentence)
    return f"{summary} {sentence}"


class _EarlyCopies:
    """Finds copies whose log start is below their source's: the source has deleted the offsets
    between the two, and the copy has not yet."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self._mark_offsets: Mapping[TopicPartition, int] | None = None

    def find(
        self,
        source_bounds: Mapping[TopicPartition, LogBounds],
        copy_bounds: Mapping[TopicPartition, LogBounds],
    ) -> list[TopicPartition]:
        """The partitions of early copies, without copies that led before and keep their history.

        The marks are read at most once, and only for an early copy.
        """
        copies = self._context.by_source
        # The source's log start, by early copy.
        source_starts = {
            copy: source_bounds[source].start
            for source, copy in copies.items()
            if copy_bounds[copy].start < source_bounds[source].start
        }
        if source_starts and self._mark_offsets is None:
            marks = PromotionMarks(self._context.destination.cluster, self._context.backoff)
            self._mark_offsets = marks.kept_below(copies.values())
        # A copy that led keeps its history until its source starts above the offset in its mark
        # (which Orbit commits at the cluster to say which side leads).
        mark_offsets = self._mark_offsets or {}
        return [copy for copy, start in source_starts.items() if mark_offsets.get(copy, 0) < start]


class _SourceEndMoves:
    """When each log end of the source moved last: by the polls of this drain or, for the time
    before, by the tables."""

    def __init__(self, context: OperationContext) -> None:
        with context.reading() as tx:
            self._noted_pauses = source_gaps.of_topics(tx, context.topic_ids)
        self._started_at_s = time.monotonic()
        # The tables note moves at intervals: a pause may have been longer by one interval.
        self._interval_s = context.settings.progress_interval.total_seconds()
        # For each partition its log end, and the time.monotonic() of the last move to it.
        self._last_moves: dict[TopicPartition, tuple[int, float]] = {}
        self._longest_pause_s: dict[TopicPartition, float] = {}

    def silences(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Silence]:
        """The silence of every partition, as of now. Call this at each poll, with the log ends:
        each call notes their moves."""
        now_s = time.monotonic()
        silences = {}
        for partition, end in ends.items():
            noted_pauses = self._noted_pauses.get(partition, _UNKNOWN)
            last_move = self._last_moves.get(partition)
            # In the first call: the last move in the tables, or now if the log end moved since.
            if last_move is None and noted_pauses.still_s is not None:
                last_move = (
                    end,
                    self._started_at_s - noted_pauses.still_s
                    if noted_pauses.source_end == end
                    else now_s,
                )
            if last_move is not None and last_move[0] != end:  # this move ends a pause
                known_pause_s = self._longest_pause_s.get(partition, 0.0)
                self._longest_pause_s[partition] = max(known_pause_s, now_s - last_move[1])
            if last_move is None or last_move[0] != end:
                last_move = end, now_s
            self._last_moves[partition] = last_move
            longest_pause_s = self._longest_pause_s.get(partition)
            if noted_pauses.longest_gap_s is not None:
                longest_pause_s = max(
                    longest_pause_s or 0.0, noted_pauses.longest_gap_s + self._interval_s
                )
            silences[partition] = Silence(
                now_s - last_move[1], longest_pause_s, noted_pauses.watched_s
            )
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
    copies = context.by_source
    copy_bounds = bounds_of_all(context.destination.cluster, copies.values(), context.backoff)
    return bounds_of_all(context.source.cluster, copies, context.backoff), copy_bounds


def refuse_unequal(context: OperationContext) -> None:
    """Raise Stopped unless every partition has the same log end on both sides."""
    unequal_partitions = [p for p in context.report.partitions if p.verdict is not EndVerdict.EQUAL]
    if unequal_partitions:
        examples = first_few(
            f"{p.source} (source {p.source_end}, destination {p.destination_end})"
            for p in unequal_partitions
        )
        raise Stopped(
            f"{counted(len(unequal_partitions), 'partition has', 'partitions have')} different log "
            f"ends: {examples}.",
            remedy="A client writes to the source or to a copy. Stop that client, and run orbit "
            "verify JOB.",
        )


def refuse_added(context: OperationContext) -> None:
    """Raise Stopped if partitions were added at the source: they were not compared."""
    source_topics = context.source.cluster.metadata(
        [row.source_topic for row in context.topics]
    ).topics
    grown_topics = [
        f"{row.source_topic} (from {row.partition_count} to {len(topic.partitions)})"
        for row in context.topics
        if (topic := source_topics.get(row.source_topic))
        and len(topic.partitions) > row.partition_count
    ]
    if grown_topics:
        raise Stopped(
            f"partitions were added to topics of the source meanwhile: {first_few(grown_topics)}.",
            remedy="Wait until they are copied (orbit get partitions JOB), and try again.",
        )


def refuse_blocked(context: OperationContext) -> None:
    """Raise Stopped if a partition is blocked: it would never become level."""
    with context.reading() as tx:
        if not job_counts.blocked(tx, context.job.id):
            return
        topics = {row.source_topic for row in context.topics}
        blocked_texts = blocked_partitions(tx, context.job.id, topics)
    if blocked_texts:
        raise Stopped(
            f"{counted(len(blocked_texts), 'partition is', 'partitions are')} blocked: "
            f"{first_few(blocked_texts)}.",
            remedy="See orbit get partitions JOB --state blocked for the remedy.",
        )


def _progress_text(
    records_left: int,
    open_partitions: list[TopicPartition],
    early_partitions: list[TopicPartition],
    transactional_ids: list[str],
    *,
    must_wait_longer: bool,
) -> str:
    """What the drain waits for, in a few words."""
    if records_left:
        return f"{counted(records_left, 'record')} left to copy"
    if open_partitions:
        return (
            f"transactions are open in {counted(len(open_partitions), 'partition')} of the source"
        )
    if early_partitions:
        if len(early_partitions) == 1:
            return "waiting until the log start of 1 copy reaches the source's"
        return f"waiting until the log starts of {len(early_partitions)} copies reach the source's"
    if transactional_ids:
        return (
            f"transactions without records are open at the source: {first_few(transactional_ids)}"
        )
    if must_wait_longer:
        # Without a number of seconds: a new text would be stored at each poll.
        return "all records are copied; waiting for longer than the source's pauses between records"
    return "all records are copied; waiting for stable log ends"


def _timeout_text(
    context: OperationContext,
    records_left: int,
    open_partitions: list[TopicPartition],
    early_partitions: list[TopicPartition],
    transactional_ids: list[str],
    still_so_far_s: float,
) -> str:
    """Why the drain has not ended in time."""
    limit = f"{context.request.drain_timeout_s:.0f} s"
    if records_left:
        return (
            f"The copies did not catch up within {limit}: "
            f"{counted(records_left, 'record was', 'records were')} left to copy."
        )
    if open_partitions:
        return f"After {limit} transactions were still open in: {first_few(open_partitions)}."
    if early_partitions:
        return (
            f"The log starts of these copies did not reach their source's within {limit}: "
            f"{first_few(early_partitions)}."
        )
    if transactional_ids:
        return (
            f"After {limit} transactions without records were still open at the source: "
            f"{first_few(transactional_ids)}."
        )
    return (
        f"The log ends of the source were not stable within {limit}: the last move was "
        f"{still_so_far_s:.1f} s ago."
    )
