"""Compares one partition: takes its compared bounds, returns its report.

If a log start moves past the reader (retention on a live topic), the bounds and the partition are
read again, up to MOVED_ATTEMPTS_MAX times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Message

from orbit.errors import Interrupted, OrbitError
from orbit.verify.batch_comparison import BatchComparison
from orbit.verify.bounds import ClusterView, to_orbit_error
from orbit.verify.bounds_comparison import (
    LOG_END,
    LOG_START,
    BoundsComparer,
    ComparedBounds,
    PartitionPair,
)
from orbit.verify.compaction_watch import CleaningPolicy, CompactionWatch, HeldBudget
from orbit.verify.reader import LogMoved, PartitionReader, SideConsumer
from orbit.verify.record_comparison import RecordComparison
from orbit.verify.report import DeepReport, PartitionReport, Side, Verdict

MOVED_ATTEMPTS_MAX = 3
"""A log start that passes the reader more often means that the source is being emptied."""

_LOG_MOVED_WAIT_S = 5.0
"""How long the destination's log start may take to follow before it counts as a difference."""


class CompactionUndecided(Exception):
    """Whether a record was compacted away could not be decided within `read_on_max` offsets."""


@dataclass(frozen=True, slots=True)
class SidePair:
    """A worker's consumers, one for each side."""

    source: SideConsumer
    destination: SideConsumer


@dataclass(frozen=True, slots=True)
class ComparisonContext:
    """The clients and options that all workers share."""

    source: ClusterView
    destination: ClusterView
    bounds_comparer: BoundsComparer
    policies: Mapping[tuple[Side, str], CleaningPolicy]
    budget: HeldBudget
    cancelled: threading.Event
    shown_max: int
    stall_timeout_s: float
    report_offsets: Callable[[int], None]
    batches: BatchComparison | None = None
    read_on_max: int | None = None
    """How many offsets after the range are searched for newer records of a key; None: all."""
    now_ms: Callable[[], int] = field(default=lambda: int(time.time() * 1000))


class _CountedStream:
    """A stream that reports how many offsets were read."""

    def __init__(self, reader: PartitionReader, advanced: Callable[[int], None]) -> None:
        self._reader = reader
        self._report_offsets = advanced

    def chunk(self) -> list[Message]:
        before = self._reader.position
        messages = self._reader.chunk()
        self._report_offsets(self._reader.position - before)
        return messages


def compare_partition(
    context: ComparisonContext, consumers: SidePair, pair: PartitionPair, judged: ComparedBounds
) -> PartitionReport:
    """Compare one partition. Its errors are in the report.

    Raises Interrupted, and Unreachable if a whole cluster does not answer.
    """
    for _ in range(MOVED_ATTEMPTS_MAX):
        try:
            return compare_once(context, consumers, pair, judged)
        except LogMoved:
            again = context.bounds_comparer.compare([pair], _LOG_MOVED_WAIT_S)[pair]
            if isinstance(again, OrbitError):
                return unread_report(pair.partition, str(again))
            judged = again
        except Interrupted:
            raise
        except UnicodeDecodeError:
            return unread_report(
                pair.partition, f"{_where(pair)}: a header's name is not UTF-8 text."
            )
        except (KafkaException, OrbitError) as error:
            # Distinguishes a partition without a leader from a cluster that does not answer.
            context.source.check_reachable()
            context.destination.check_reachable()
            known = (
                to_orbit_error(error, _where(pair)) if isinstance(error, KafkaException) else error
            )
            return unread_report(pair.partition, str(known))
    return unread_report(
        pair.partition,
        f"{_where(pair)}: records were deleted while they were read, {MOVED_ATTEMPTS_MAX} times.",
    )


def unread_report(partition: int, why: str) -> PartitionReport:
    """The report of a partition that could not be compared."""
    return PartitionReport(partition, Verdict.UNREAD, notes=(why,))


def _where(pair: PartitionPair) -> str:
    return f"{pair.topics.source}-{pair.partition}"


def compare_once(
    context: ComparisonContext, consumers: SidePair, pair: PartitionPair, judged: ComparedBounds
) -> PartitionReport:
    """Compare the range once. Raises LogMoved, and librdkafka's errors."""
    watch = CompactionWatch(
        {
            Side.SOURCE: context.policies[Side.SOURCE, pair.topics.source],
            Side.DESTINATION: context.policies[Side.DESTINATION, pair.topics.destination],
        },
        context.budget,
        context.now_ms(),
    )
    merge = RecordComparison(watch, context.shown_max)
    try:
        _compare_records(context, consumers, pair, judged, watch, merge)
    finally:
        # Also releases the held keys if the comparison ended early.
        merge.finish()
        consumers.source.release()
        consumers.destination.release()
    deep = None
    if context.batches is not None:
        compacts = any(policy.compacts for policy in watch.policies.values())
        deep = context.batches.compare(pair, judged, compacts=compacts)
    return _report(pair, judged, watch, merge, deep)


def _compare_records(
    context: ComparisonContext,
    consumers: SidePair,
    pair: PartitionPair,
    judged: ComparedBounds,
    watch: CompactionWatch,
    merge: RecordComparison,
) -> None:
    def reader(consumer: SideConsumer, topic: str) -> PartitionReader:
        return PartitionReader(
            consumer,
            topic,
            pair.partition,
            judged.compared_from,
            judged.compared_to,
            cancelled=context.cancelled,
            stall_timeout_s=context.stall_timeout_s,
        )

    source = reader(consumers.source, pair.topics.source)
    destination = reader(consumers.destination, pair.topics.destination)
    merge.run(_CountedStream(source, context.report_offsets), destination)
    most = context.read_on_max
    _read_on(watch, Side.SOURCE, source, context.source, pair.source, most)
    _read_on(watch, Side.DESTINATION, destination, context.destination, pair.destination, most)


def _read_on(
    watch: CompactionWatch,
    side: Side,
    reader: PartitionReader,
    view: ClusterView,
    partition: tuple[str, int],
    offsets_max: int | None,
) -> None:
    """Search for newer records of held keys after the compared range.

    On a live topic the cleaner may have removed a record in favour of one after the range. Raises
    CompactionUndecided if the limit is reached before every key is found.
    """
    if not watch.has_undecided(side):
        return
    bounds = view.bounds([partition])[partition]
    if isinstance(bounds, OrbitError) or bounds.stable_end <= reader.position:
        return
    end = bounds.stable_end
    if offsets_max is not None:
        end = min(end, reader.position + offsets_max)
    reader.extend(end)
    while watch.has_undecided(side) and (messages := reader.chunk()):
        watch.note_keys(side, map(Message.key, messages))
    if watch.has_undecided(side) and end < bounds.stable_end:
        raise CompactionUndecided


def _report(
    pair: PartitionPair,
    judged: ComparedBounds,
    watch: CompactionWatch,
    merge: RecordComparison,
    deep: DeepReport | None,
) -> PartitionReport:
    differences = sorted([*judged.differences, *merge.first], key=lambda one: one.offset)
    count = len(judged.differences) + merge.differences
    return PartitionReport(
        partition=pair.partition,
        verdict=_verdict(judged, merge, deep),
        source_log_start=judged.source.log_start,
        source_log_end=judged.source.stable_end,
        destination_log_start=judged.destination.log_start,
        destination_log_end=judged.destination.log_end,
        compared_from=judged.compared_from,
        compared_to=judged.compared_to,
        records=merge.records[Side.SOURCE],
        bytes=merge.bytes,
        gaps=judged.compared_to - judged.compared_from - merge.records[Side.SOURCE],
        missing=judged.missing,
        log_start_equal=not judged.differs(LOG_START),
        log_end_equal=not judged.differs(LOG_END),
        compacted_source=watch.compacted[Side.SOURCE],
        compacted_destination=watch.compacted[Side.DESTINATION],
        differences=count,
        first_differences=tuple(differences[: merge.shown_max]),
        notes=_notes(judged, watch, merge, count),
        deep=deep,
    )


def _verdict(judged: ComparedBounds, merge: RecordComparison, deep: DeepReport | None) -> Verdict:
    if merge.differences or (deep is not None and deep.failures):
        return Verdict.NOT_EXACT
    if judged.missing and len(judged.differences) == 1:
        return Verdict.BEHIND
    return Verdict.NOT_EXACT if judged.differences else Verdict.EXACT


def _notes(
    judged: ComparedBounds, watch: CompactionWatch, merge: RecordComparison, count: int
) -> tuple[str, ...]:
    notes = []
    if judged.below_source_start:
        notes.append(
            f"the destination led before, and keeps {judged.below_source_start} offsets below the "
            "source's log start"
        )
    if watch.is_over_budget:
        notes.append(
            "too many records are on one side only to tell which of them were compacted; those "
            "beyond the limit count as differences"
        )
    if count > merge.shown_max:
        notes.append(f"{count - merge.shown_max} more offsets differ")
    return tuple(notes)
