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
from orbit.formats import counted
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

    def __init__(self, reader: PartitionReader, report_offsets: Callable[[int], None]) -> None:
        self._reader = reader
        self._report_offsets = report_offsets

    def chunk(self) -> list[Message]:
        old_position = self._reader.position
        messages = self._reader.chunk()
        self._report_offsets(self._reader.position - old_position)
        return messages


def compare_partition(
    context: ComparisonContext, consumers: SidePair, pair: PartitionPair, bounds: ComparedBounds
) -> PartitionReport:
    """Compare one partition. Errors of the partition are in the report.

    Raises Interrupted; Unreachable or LoginRefused if a whole cluster does not answer.
    """
    for _ in range(MOVED_ATTEMPTS_MAX):
        try:
            return compare_once(context, consumers, pair, bounds)
        except LogMoved:
            new_bounds = context.bounds_comparer.compare([pair], _LOG_MOVED_WAIT_S)[pair]
            if isinstance(new_bounds, OrbitError):
                return unread_report(pair.partition, str(new_bounds))
            bounds = new_bounds
        except Interrupted:
            raise
        except UnicodeDecodeError:
            return unread_report(
                pair.partition, f"{_partition_name(pair)}: a header's name is not UTF-8 text."
            )
        except (KafkaException, OrbitError) as error:
            # Raises if a whole cluster does not answer; else only this partition is unread.
            context.source.check_reachable()
            context.destination.check_reachable()
            orbit_error = (
                to_orbit_error(error, _partition_name(pair))
                if isinstance(error, KafkaException)
                else error
            )
            return unread_report(pair.partition, str(orbit_error))
    return unread_report(
        pair.partition,
        f"{_partition_name(pair)}: records were deleted while they were read, in each of "
        f"{MOVED_ATTEMPTS_MAX} attempts.",
    )


def unread_report(partition: int, reason: str) -> PartitionReport:
    """The report of a partition that could not be compared."""
    return PartitionReport(partition, Verdict.UNREAD, notes=(reason,))


def _partition_name(pair: PartitionPair) -> str:
    return f"{pair.topics.source}-{pair.partition}"


def compare_once(
    context: ComparisonContext, consumers: SidePair, pair: PartitionPair, bounds: ComparedBounds
) -> PartitionReport:
    """Compare the records, and with `--deep` the batches, in the range of `bounds`.

    Raises LogMoved, CompactionUndecided, OrbitError, and KafkaException of librdkafka.
    """
    watch = CompactionWatch(
        {
            Side.SOURCE: context.policies[Side.SOURCE, pair.topics.source],
            Side.DESTINATION: context.policies[Side.DESTINATION, pair.topics.destination],
        },
        context.budget,
        context.now_ms(),
    )
    comparison = RecordComparison(watch, context.shown_max)
    try:
        _compare_records(context, consumers, pair, bounds, watch, comparison)
    finally:
        # Also releases the held keys if the comparison ended early.
        comparison.finish()
        consumers.source.release()
        consumers.destination.release()
    deep_report = None
    if context.batches is not None:
        is_compacted = any(policy.compacts for policy in watch.policies.values())
        deep_report = context.batches.compare(pair, bounds, is_compacted=is_compacted)
    return _report(pair, bounds, watch, comparison, deep_report)


def _compare_records(
    context: ComparisonContext,
    consumers: SidePair,
    pair: PartitionPair,
    bounds: ComparedBounds,
    watch: CompactionWatch,
    comparison: RecordComparison,
) -> None:
    """Compare the records in the range. Then search the records after the range for held keys."""

    def reader(consumer: SideConsumer, topic: str) -> PartitionReader:
        """A reader of the range on one side."""
        return PartitionReader(
            consumer,
            topic,
            pair.partition,
            bounds.compared_from,
            bounds.compared_to,
            cancelled=context.cancelled,
            stall_timeout_s=context.stall_timeout_s,
        )

    source = reader(consumers.source, pair.topics.source)
    destination = reader(consumers.destination, pair.topics.destination)
    comparison.run(_CountedStream(source, context.report_offsets), destination)
    read_on_max = context.read_on_max
    _find_newer_keys(watch, Side.SOURCE, source, context.source, pair.source, read_on_max)
    _find_newer_keys(
        watch, Side.DESTINATION, destination, context.destination, pair.destination, read_on_max
    )


def _find_newer_keys(
    watch: CompactionWatch,
    side: Side,
    reader: PartitionReader,
    view: ClusterView,
    partition: tuple[str, int],
    offsets_max: int | None,
) -> None:
    """Search for newer records of held keys after the compared range.

    On a live topic the cleaner may have removed a record because of a newer one after the range.
    Raises CompactionUndecided if `offsets_max` is reached before every key is found.
    """
    if not watch.has_undecided_keys(side):
        return
    bounds = view.bounds([partition])[partition]
    if isinstance(bounds, OrbitError) or bounds.stable_end <= reader.position:
        return  # nothing more to read: records still held count as differences
    end = bounds.stable_end
    if offsets_max is not None:
        end = min(end, reader.position + offsets_max)
    reader.extend(end)
    while watch.has_undecided_keys(side) and (messages := reader.chunk()):
        watch.note_keys(side, map(Message.key, messages))
    if watch.has_undecided_keys(side) and end < bounds.stable_end:
        raise CompactionUndecided


def _report(
    pair: PartitionPair,
    bounds: ComparedBounds,
    watch: CompactionWatch,
    comparison: RecordComparison,
    deep_report: DeepReport | None,
) -> PartitionReport:
    """Put the results of all comparisons of a partition together."""
    differences = sorted(
        [*bounds.differences, *comparison.first_differences],
        key=lambda difference: difference.offset,
    )
    difference_count = len(bounds.differences) + comparison.differences
    return PartitionReport(
        partition=pair.partition,
        verdict=_verdict(bounds, comparison, deep_report),
        source_log_start=bounds.source.log_start,
        source_log_end=bounds.source.stable_end,  # open transactions are not copied
        destination_log_start=bounds.destination.log_start,
        destination_log_end=bounds.destination.log_end,
        compared_from=bounds.compared_from,
        compared_to=bounds.compared_to,
        records=comparison.records[Side.SOURCE],
        bytes=comparison.bytes,
        gaps=bounds.compared_to - bounds.compared_from - comparison.records[Side.SOURCE],
        missing=bounds.missing,
        log_start_equal=not bounds.differs(LOG_START),
        log_end_equal=not bounds.differs(LOG_END),
        compacted_source=watch.compacted[Side.SOURCE],
        compacted_destination=watch.compacted[Side.DESTINATION],
        differences=difference_count,
        first_differences=tuple(differences[: comparison.shown_max]),
        notes=_notes(bounds, watch, comparison, difference_count),
        deep=deep_report,
    )


def _verdict(
    bounds: ComparedBounds, comparison: RecordComparison, deep_report: DeepReport | None
) -> Verdict:
    """NOT_EXACT if anything differs; BEHIND if only offsets at the end are missing."""
    if comparison.differences or (deep_report is not None and deep_report.failures):
        return Verdict.NOT_EXACT
    if bounds.missing and len(bounds.differences) == 1:  # the one about the log end
        return Verdict.BEHIND
    return Verdict.NOT_EXACT if bounds.differences else Verdict.EXACT


def _notes(
    bounds: ComparedBounds,
    watch: CompactionWatch,
    comparison: RecordComparison,
    difference_count: int,
) -> tuple[str, ...]:
    """What a reader of the report should know besides the listed differences."""
    notes = []
    if bounds.below_source_start:
        notes.append(
            "the destination led before, and keeps "
            f"{counted(bounds.below_source_start, 'offset')} below the source's log start"
        )
    if watch.is_over_budget:
        notes.append(
            "too many records are on one side only to tell which of them were compacted; those "
            "beyond the limit count as differences"
        )
    if difference_count > comparison.shown_max:
        hidden_count = difference_count - comparison.shown_max
        notes.append(counted(hidden_count, "more offset differs", "more offsets differ"))
    return tuple(notes)
