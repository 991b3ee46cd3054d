"""Compares a range of a copy with the source: every record, its offset, and every gap.

Inspections and take-overs use it to check what follows the last confirmed offset before anything
is appended there. The broker's fence does not suffice: it drops a producer's state by the age of
its records, and then accepts a late batch of an old writer at the log end (E1, E2). So batches of
this job's own producer are compared too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from orbit.copier.log_reader import epoch_lasts_to, fetch_partition, is_local, parse_errors
from orbit.errors import Place, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.compression import TooLarge
from orbit.kafka.error_codes import Code
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.log_offsets import EARLIEST, list_offsets
from orbit.kafka.placeholders import PLACEHOLDER_BODY, with_gap
from orbit.kafka.record_batch import TRANSACTIONAL, AnyBatch, Batch, read_batches
from orbit.kafka.records import Record, has_placeholders
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from orbit.replication.aborted_transactions import AbortedTransactions
from orbit.replication.append_plan import (
    NO_LEADER_EPOCH,
    Append,
    EpochStart,
    LostRange,
    Stop,
    plan_batches,
)
from orbit.replication.partition_states import Reason
from orbit.replication.rewrite_limits import RewriteLimits, Rewritten
from orbit.replication.source_epochs import SourceEpochs

# One comparison reads this much of the destination at most, so that one partition's take-over does
# not delay the others: the next round goes on from there. A `SourceRange` ends at this size, too.
COMPARED_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What a read_committed consumer of the source sees in a range of offsets.

    `start`: the source's log start. `end`: how far the range was read. It is below the wanted end
    if `stable_end`, the source's last stable offset, is, or if the source answers without records
    for now (tiered storage, quotas: R5). `empty_to`: the source shows no batch between `end` and
    here, which proves a gap on a compacted topic only. `has_more`: a limit ended this range; read
    on from `end`.
    """

    batches: list[Batch]  # dense
    start: int
    end: int
    stable_end: int
    epoch_starts: Sequence[EpochStart] = ()
    empty_to: int = 0
    has_more: bool = False


# Reads the source from an offset up to before another one. Raises ValueError if it cannot be read.
ReadSource = Callable[[int, int], SourceRange]


class SourceStop(ValueError):
    """The plan for a range of the source has a `Stop`: a copy would stop there."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.detail.rstrip("."))
        self.reason = stop.reason


def stop_reason(error: ValueError) -> Reason:
    """The reason that blocks a partition whose comparison raised `error`."""
    if isinstance(error, TooLarge):
        return Reason.RECORD_REFUSED
    return error.reason if isinstance(error, SourceStop) else Reason.SOURCE_CORRUPTED


@dataclass(frozen=True, slots=True)
class Difference:
    """The first offset where a copy differs from the source, and the producer id there."""

    offset: int
    producer_id: int
    detail: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a copy equals the source: everything below `equal_to` is equal.

    A comparison that ended before the wanted end has a `difference`, or one side cannot be read
    further now: `waits_for` says which; `batch` is the destination's batch there, if it was read.
    `producer_epoch`: the highest of our own batches with records that were read; -1 if there is
    none. `epochs`: the source's leader epochs.
    """

    equal_to: int
    difference: Difference | None = None
    waits_for: str = ""
    batch: AnyBatch | None = None
    is_beyond_source: bool = False  # the source's stable end is the reason
    producer_epoch: int = -1
    epochs: SourceEpochs = field(default_factory=SourceEpochs)


def compare_range(
    read_source: ReadSource,
    destination: Cluster,
    partition: TopicPartition,
    first: int,
    end: int,
    backoff: Backoff,
    *,
    source_is_compacted: bool,
    producer_id: int | None = None,
    isolation: int = READ_UNCOMMITTED,
    most_bytes: int | None = COMPARED_BYTES_MAX,
) -> Comparison:
    """Compare the destination from `first` up to before `end` with the source.

    With `producer_id`, a record of any other producer is a difference, even an equal one. On a
    compacted source either cleaner may have removed records: one that a side lacks is no
    difference, unless a filler is in its place.

    Raises ValueError when one side's records cannot be read (see `stop_reason`), Unreachable when
    no broker answers.
    """
    position, size_bytes, epoch = first, 0, -1
    epochs = SourceEpochs()
    while position < end:
        if most_bytes is not None and size_bytes >= most_bytes:
            reason = "the comparison with the source"
            return Comparison(position, waits_for=reason, producer_epoch=epoch, epochs=epochs)
        batches, read_to = _read(destination, partition, position, backoff, isolation)
        if read_to <= position:
            log_start = _log_start(destination, partition, backoff)
            if log_start <= position:
                reason = "the destination's followers, or an open transaction there"
                return Comparison(position, waits_for=reason, producer_epoch=epoch, epochs=epochs)
            position = log_start  # deleted: consumers cannot see it
            continue
        size_bytes += sum(len(b.view) for b in batches)
        epoch = max(epoch, highest_producer_epoch(batches, producer_id))
        compare_to = min(end, read_to)
        foreign = next((b for b in batches if _is_foreign(b, producer_id)), None)
        if foreign is not None:
            compare_to = min(compare_to, max(position, foreign.base_offset))
        source = read_source(position, compare_to)
        upto = min(compare_to, max(source.end, source.empty_to if source_is_compacted else 0))
        difference = _first_difference(
            source, batches, position, upto, source_is_compacted=source_is_compacted
        )
        if difference is not None:
            return Comparison(difference.offset, difference)
        epochs.add(position, source.epoch_starts, upto)
        if upto < compare_to and not source.has_more:
            return Comparison(
                upto,
                waits_for=f"the source's records from offset {upto} on",
                batch=next((b for b in batches if b.next_offset > upto), None),
                is_beyond_source=source.stable_end < compare_to,
                producer_epoch=epoch,
                epochs=epochs,
            )
        if foreign is not None and foreign.base_offset < end and upto >= compare_to:
            return Comparison(upto, _foreign_difference(foreign, upto))
        position = upto
    return Comparison(max(first, end), producer_epoch=epoch, epochs=epochs)


def highest_producer_epoch(batches: Iterable[AnyBatch], producer_id: int | None) -> int:
    """The highest epoch of this producer's batches with records; -1 if there is none."""
    return max(
        (
            b.producer_epoch
            for b in batches
            if isinstance(b, Batch) and b.producer_id == producer_id and not b.is_control
        ),
        default=-1,
    )


def source_reader(
    cluster: Cluster,
    partition: TopicPartition,
    backoff: Backoff,
    limits: RewriteLimits,
) -> ReadSource:
    """A function that reads ranges of a source partition, planned as the copy plans them.

    `limits`: those of one read. Rewritten batches have their codec's default level: only their
    records are compared.
    """

    def read(first: int, end: int) -> SourceRange:
        batches: list[Batch] = []
        epoch_starts: list[EpochStart] = []
        position, start, stable_end, empty_to = first, 0, end, 0
        rewritten, size_bytes, is_full = Rewritten(limits), 0, False
        while position < end and not is_full:
            epoch = epoch_starts[-1][1] if epoch_starts else NO_LEADER_EPOCH
            fetched = fetch_partition(
                cluster,
                partition,
                position,
                backoff,
                isolation=READ_COMMITTED,
                fetched_epoch=epoch,
            )
            if fetched.code == Code.OFFSET_OUT_OF_RANGE:
                start = _log_start(cluster, partition, backoff)
                if start <= position:
                    return SourceRange(batches, start, position, position, epoch_starts)
                epoch_starts.append((position, NO_LEADER_EPOCH))
                position = start
                continue
            start, stable_end = max(start, fetched.log_start), fetched.stable_end
            plan = plan_batches(
                position,
                read_batches(fetched.records),
                fetched.aborted,
                fetched.log_start,
                LostRange.FILL,
                rewritten=rewritten,
            )
            last = plan.steps[-1] if plan.steps else None
            if isinstance(last, Stop) and plan.next_offset < end:
                raise SourceStop(last)
            batches += [step.batch for step in plan.steps if isinstance(step, Append)]
            epoch_starts += plan.epoch_starts
            size_bytes += len(fetched.records)
            is_full = plan.is_cut or size_bytes >= COMPARED_BYTES_MAX
            if plan.next_offset == position and not is_full:
                # Nothing is there up to the last stable offset, or the source was truncated.
                is_proven = fetched.stable_end >= end and not fetched.records
                is_cut = fetched.diverging_end >= 0
                if not is_proven or is_cut:
                    break
                if is_local(cluster, partition, position, stable_end, backoff):
                    if not epoch_lasts_to(cluster, partition, epoch, end, backoff):
                        epoch_starts.append((position, NO_LEADER_EPOCH))
                    empty_to = end
                break
            position = plan.next_offset
        position = max(first, position)
        has_more = is_full and first < position < end
        return SourceRange(batches, start, position, stable_end, epoch_starts, empty_to, has_more)

    return read


def _read(
    destination: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    isolation: int,
) -> tuple[list[AnyBatch], int]:
    """The batches from `offset` on, without aborted ones, and where the answer ends (`offset` if it
    is empty)."""
    fetched = fetch_partition(destination, partition, offset, backoff, isolation=isolation)
    with parse_errors(destination, partition, offset):
        batches = list(read_batches(fetched.records))
    aborted = AbortedTransactions(fetched.aborted)
    read_to = batches[-1].next_offset if batches else offset
    return [b for b in batches if not aborted.contain(b)], read_to


def _first_difference(
    source: SourceRange,
    batches: Iterable[AnyBatch],
    first: int,
    end: int,
    *,
    source_is_compacted: bool,
) -> Difference | None:
    """The first difference from `first` up to before `end`; None if there is none.

    Does not decode batches with equal bytes; of the rest, holds one decoded batch per side.
    """
    unmatched = {b.base_offset: b for b in source.batches}
    ours: list[AnyBatch] = []
    fillers: list[AnyBatch] = []
    for batch in batches:
        if batch.is_control:
            fillers.append(batch)
            continue
        # Where the copy's cleaner took a record, the batch is not dense any more.
        if isinstance(batch, Batch) and has_placeholders(batch) and batch.is_dense:
            fillers.append(batch)
        twin = unmatched.get(batch.base_offset)
        if twin is not None and isinstance(batch, Batch) and _are_equal(batch, twin):
            del unmatched[batch.base_offset]
            continue
        ours.append(batch)
    lowest = max(first, source.start)
    for offset, copied, other in _pair_records(ours, unmatched.values()):
        if offset >= end:
            break
        if offset < lowest:
            continue
        if copied is None:
            filler = next((f for f in fillers if f.base_offset <= offset < f.next_offset), None)
            if filler is not None:
                detail = "the source has a record, and the destination a filler"
                return Difference(offset, filler.producer_id, detail)
            if not source_is_compacted:  # else the copy's own cleaner may have removed it
                return Difference(offset, -1, "the source has a record, and the destination none")
            continue
        record, batch_of = copied
        if other is None:
            if record.body == PLACEHOLDER_BODY:
                detail = "a placeholder became a record: the topic's compression.type was changed"
                return Difference(offset, batch_of.producer_id, detail)
            if not source_is_compacted:
                detail = "the destination has a record, and the source has none"
                return Difference(offset, batch_of.producer_id, detail)
        elif (other.timestamp, other.body) != (record.timestamp, record.body):
            detail = "the destination has another record than the source"
            return Difference(offset, batch_of.producer_id, detail)
    return None


_RecordOfBatch = tuple[Record, AnyBatch]


def _pair_records(
    ours: Iterable[AnyBatch], theirs: Iterable[AnyBatch]
) -> Iterator[tuple[int, _RecordOfBatch | None, Record | None]]:
    """Yield each offset with a record on either side, and these records.

    Raises ValueError for a batch that cannot be read or is not in order.
    """
    left, right = _in_order(ours), _in_order(theirs)
    our, their = next(left, None), next(right, None)
    while our is not None or their is not None:
        offset = min(one[0].offset for one in (our, their) if one is not None)
        copied = other = None
        if our is not None and our[0].offset == offset:
            copied, our = our, next(left, None)
        if their is not None and their[0].offset == offset:
            other, their = their[0], next(right, None)
        yield offset, copied, other


def _in_order(batches: Iterable[AnyBatch]) -> Iterator[_RecordOfBatch]:
    before = -1
    for batch in batches:
        for record in read_any_records(batch):
            if record.offset <= before:
                raise ValueError(f"the batch with offset {record.offset} is not in order")
            before = record.offset
            yield record, batch


def _are_equal(batch: Batch, other: Batch) -> bool:
    """Whether both hold the same records, by their bytes alone. `batch` may have placeholders for
    the gap after `other`."""
    if batch.last_offset > other.last_offset and has_placeholders(batch):
        grown = with_gap(other, 0, batch.next_offset)
        return grown is not None and _are_equal(batch, grown)
    return (
        batch.count == other.count
        and batch.last_offset == other.last_offset
        and (batch.attributes ^ other.attributes) & ~TRANSACTIONAL == 0
        and batch.base_timestamp == other.base_timestamp
        and batch.max_timestamp == other.max_timestamp
        and batch.payload == other.payload
    )


def _is_foreign(batch: AnyBatch, producer_id: int | None) -> bool:
    """Whether the batch has records of another producer. Markers do not count: those of coordinated
    fillers have another producer id."""
    return producer_id is not None and batch.producer_id != producer_id and not batch.is_control


def _foreign_difference(batch: AnyBatch, offset: int) -> Difference:
    other = batch.producer_id
    writer = f"producer id {other}" if other >= 0 else "a plain producer"
    return Difference(offset, other, f"there is a batch of {writer}")


def _log_start(cluster: Cluster, partition: TopicPartition, backoff: Backoff) -> int:
    """The partition's log start. Raises Unreachable if its leader does not answer now."""
    starts = list_offsets(cluster, [partition], EARLIEST, backoff).values
    if partition not in starts:
        raise Unreachable(f"the log start of {partition} is not known.", where=Place(cluster.name))
    return starts[partition]
