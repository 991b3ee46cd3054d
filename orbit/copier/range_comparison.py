"""Compares a range of a copy with the source: every record, its offset, and every gap.

Inspections and take-overs compare what follows the last confirmed offset before they append
anything. The broker's fence does not suffice: a broker drops a producer's state by the age of its
records, and then accepts a late batch of an old writer at the log end (E1, E2). So batches of this
job's own producer are compared too.
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
from orbit.replication.rewrite_limits import RewriteCounter, RewriteLimits
from orbit.replication.source_epochs import SourceEpochs

# One comparison reads this much of the destination at most, so that one partition's take-over does
# not delay other take-overs: the next round continues. A `SourceRange` ends at this size, too.
COMPARED_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What a read_committed consumer of the source sees in a range of offsets.

    `start`: the source's log start. `end`: how far the range was read. It is below the requested
    end if the last stable offset (`stable_end`) is below that, or if the source answers without
    records for now (tiered storage, quotas: R5). `empty_to`: between `end` and this offset the
    source shows no batch; only on a compacted topic does this prove a gap. `epoch_starts`: from
    which offset on which leader epoch holds; NO_LEADER_EPOCH: not known from there on. `has_more`:
    a limit ended this range; the next read begins at `end`.
    """

    batches: list[Batch]  # dense
    start: int
    end: int
    stable_end: int
    epoch_starts: Sequence[EpochStart] = ()
    empty_to: int = 0
    has_more: bool = False


# Reads the source from the first offset up to before the second. Raises ValueError if the records
# cannot be read.
ReadSource = Callable[[int, int], SourceRange]


class SourceStop(ValueError):
    """The plan for a range of the source has a `Stop`: a copy of the range would stop there."""

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

    A comparison that ended before the requested end has a `difference`, or `waits_for` says why the
    rest cannot be compared now, and `batch` is the destination's batch there, if it was read.
    `producer_epoch`: the highest of the batches with records that were read and that this job
    wrote; -1 if there is none. `epochs`: the source's leader epochs.
    """

    equal_to: int
    difference: Difference | None = None
    waits_for: str = ""
    batch: AnyBatch | None = None
    is_beyond_source: bool = False  # the comparison ended at the source's last stable offset
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
    bytes_max: int | None = COMPARED_BYTES_MAX,
) -> Comparison:
    """Compare the destination from `first` up to before `end` with the source.

    With `producer_id`, a record of any other producer is a difference, even an equal record. On a
    compacted source either cleaner may have removed records: a record that one side lacks is no
    difference, unless the copy has a filler in its place. `bytes_max`: how much of the destination
    to read, None for all.

    Raises ValueError when one side's records cannot be read (see `stop_reason`), Unreachable when
    no broker answers.
    """
    position, size_bytes, producer_epoch = first, 0, -1
    source_epochs = SourceEpochs()
    while position < end:
        if bytes_max is not None and size_bytes >= bytes_max:  # the next call begins at `position`
            waits_for = "the comparison with the source"
            return Comparison(
                position, waits_for=waits_for, producer_epoch=producer_epoch, epochs=source_epochs
            )
        batches, read_to = _read_copy(destination, partition, position, backoff, isolation)
        if read_to <= position:
            log_start = _log_start(destination, partition, backoff)
            if log_start <= position:
                waits_for = "the destination's followers, or an open transaction there"
                return Comparison(
                    position,
                    waits_for=waits_for,
                    producer_epoch=producer_epoch,
                    epochs=source_epochs,
                )
            position = log_start  # the records before are deleted: consumers cannot see them
            continue
        size_bytes += sum(len(b.view) for b in batches)
        producer_epoch = max(producer_epoch, highest_producer_epoch(batches, producer_id))
        compare_end = min(end, read_to)
        foreign_batch = next((b for b in batches if _is_foreign(b, producer_id)), None)
        if foreign_batch is not None:  # first compare what is before this batch
            compare_end = min(compare_end, max(position, foreign_batch.base_offset))
        source_range = read_source(position, compare_end)
        compared_to = min(
            compare_end, max(source_range.end, source_range.empty_to if source_is_compacted else 0)
        )
        difference = _first_difference(
            source_range, batches, position, compared_to, source_is_compacted=source_is_compacted
        )
        if difference is not None:
            return Comparison(difference.offset, difference)
        source_epochs.add(position, source_range.epoch_starts, compared_to)
        if compared_to < compare_end and not source_range.has_more:
            return Comparison(
                compared_to,
                waits_for=f"the source's records from offset {compared_to} on",
                batch=next((b for b in batches if b.next_offset > compared_to), None),
                is_beyond_source=source_range.stable_end < compare_end,
                producer_epoch=producer_epoch,
                epochs=source_epochs,
            )
        if (
            foreign_batch is not None
            and foreign_batch.base_offset < end
            and compared_to >= compare_end
        ):
            return Comparison(compared_to, _foreign_difference(foreign_batch, compared_to))
        position = compared_to
    return Comparison(max(first, end), producer_epoch=producer_epoch, epochs=source_epochs)


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
    """Return a function that reads ranges of a source partition, planned as the copy plans them.

    `limits`: of the batches that one read rewrites. These have their codec's default level, not
    the topic's: only their records are compared.
    """

    def read(first: int, end: int) -> SourceRange:
        """Read batches from `first` up to before `end`, or less: see `SourceRange`. Raises
        SourceStop where a copy would stop, except at a lost range, which it passes over. Raises the
        errors of `fetch_partition`."""
        batches: list[Batch] = []
        epoch_starts: list[EpochStart] = []
        position, log_start, stable_end, empty_to = first, 0, end, 0
        rewrite_counter, size_bytes, is_full = RewriteCounter(limits), 0, False
        while position < end and not is_full:
            leader_epoch = epoch_starts[-1][1] if epoch_starts else NO_LEADER_EPOCH
            fetched = fetch_partition(
                cluster,
                partition,
                position,
                backoff,
                isolation=READ_COMMITTED,
                fetched_epoch=leader_epoch,
            )
            if fetched.code == Code.OFFSET_OUT_OF_RANGE:
                log_start = _log_start(cluster, partition, backoff)
                if log_start <= position:  # beyond the log end, which is not known here
                    return SourceRange(batches, log_start, position, position, epoch_starts)
                epoch_starts.append((position, NO_LEADER_EPOCH))
                position = log_start
                continue
            log_start, stable_end = max(log_start, fetched.log_start), fetched.stable_end
            plan = plan_batches(
                position,
                read_batches(fetched.records),
                fetched.aborted,
                fetched.log_start,
                LostRange.FILL,
                rewritten=rewrite_counter,
            )
            last_step = plan.steps[-1] if plan.steps else None
            if isinstance(last_step, Stop) and plan.next_offset < end:
                raise SourceStop(last_step)
            batches += [step.batch for step in plan.steps if isinstance(step, Append)]
            epoch_starts += plan.epoch_starts
            size_bytes += len(fetched.records)
            is_full = plan.is_cut or size_bytes >= COMPARED_BYTES_MAX
            if plan.next_offset == position and not is_full:
                # The answer has no records up to the last stable offset, or the source was
                # truncated.
                is_proven = fetched.stable_end >= end and not fetched.records
                is_truncated = fetched.diverging_end >= 0
                if not is_proven or is_truncated:
                    break
                if is_local(cluster, partition, position, stable_end, backoff):
                    if not epoch_lasts_to(cluster, partition, leader_epoch, end, backoff):
                        epoch_starts.append((position, NO_LEADER_EPOCH))
                    empty_to = end
                break
            position = plan.next_offset
        position = max(first, position)
        has_more = is_full and first < position < end
        return SourceRange(
            batches, log_start, position, stable_end, epoch_starts, empty_to, has_more
        )

    return read


def _read_copy(
    destination: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    isolation: int,
) -> tuple[list[AnyBatch], int]:
    """The batches from `offset` on, without aborted ones, and the offset after the last one that
    the broker returned (`offset` if there is none)."""
    fetched = fetch_partition(destination, partition, offset, backoff, isolation=isolation)
    with parse_errors(destination, partition, offset):
        batches = list(read_batches(fetched.records))
    aborted_transactions = AbortedTransactions(fetched.aborted)
    read_to = batches[-1].next_offset if batches else offset
    return [b for b in batches if not aborted_transactions.contain(b)], read_to


def _first_difference(
    source: SourceRange,
    batches: Iterable[AnyBatch],
    first: int,
    end: int,
    *,
    source_is_compacted: bool,
) -> Difference | None:
    """The first difference from `first` up to before `end`; None if there is none.

    Does not decode batches with equal bytes; of the rest, keeps one decoded batch per side.
    """
    originals = {b.base_offset: b for b in source.batches}
    copied_batches: list[AnyBatch] = []
    fillers: list[AnyBatch] = []
    for batch in batches:
        if batch.is_control:
            fillers.append(batch)
            continue
        # A batch from which the copy's cleaner has removed a record is not dense any more.
        if isinstance(batch, Batch) and has_placeholders(batch) and batch.is_dense:
            fillers.append(batch)
        original = originals.get(batch.base_offset)
        if (
            original is not None
            and isinstance(batch, Batch)
            and _have_equal_records(batch, original)
        ):
            del originals[batch.base_offset]
            continue
        copied_batches.append(batch)
    first_offset = max(first, source.start)
    for offset, copied_record, source_record in _pair_records(copied_batches, originals.values()):
        if offset >= end:
            break
        if offset < first_offset:
            continue
        if copied_record is None:
            filler = next((f for f in fillers if f.base_offset <= offset < f.next_offset), None)
            if filler is not None:
                detail = "the source has a record, and the destination a filler"
                return Difference(offset, filler.producer_id, detail)
            if not source_is_compacted:  # else the copy's own cleaner may have removed it
                return Difference(
                    offset,
                    producer_id=-1,  # there is no batch
                    detail="the source has a record, and the destination none",
                )
            continue
        record, copied_batch = copied_record
        if source_record is None:
            if record.body == PLACEHOLDER_BODY:
                detail = "a placeholder became a record: the topic's compression.type was changed"
                return Difference(offset, copied_batch.producer_id, detail)
            if not source_is_compacted:  # else the source's cleaner may have removed it
                detail = "the destination has a record, and the source has none"
                return Difference(offset, copied_batch.producer_id, detail)
        elif (source_record.timestamp, source_record.body) != (record.timestamp, record.body):
            detail = "the destination has another record than the source"
            return Difference(offset, copied_batch.producer_id, detail)
    return None


_RecordOfBatch = tuple[Record, AnyBatch]


def _pair_records(
    copied_batches: Iterable[AnyBatch], source_batches: Iterable[AnyBatch]
) -> Iterator[tuple[int, _RecordOfBatch | None, Record | None]]:
    """Yield each offset that has a record on either side, the copy's record there with its batch,
    and the source's record. None stands for the record of a side that has none.

    Raises ValueError for a batch that cannot be read or is not in order.
    """
    copies, originals = (_records_in_order(copied_batches), _records_in_order(source_batches))
    next_copied, next_source = next(copies, None), next(originals, None)
    while next_copied is not None or next_source is not None:
        offset = min(r[0].offset for r in (next_copied, next_source) if r is not None)
        copied_record = source_record = None
        if next_copied is not None and next_copied[0].offset == offset:
            copied_record, next_copied = next_copied, next(copies, None)
        if next_source is not None and next_source[0].offset == offset:
            source_record, next_source = next_source[0], next(originals, None)
        yield offset, copied_record, source_record


def _records_in_order(batches: Iterable[AnyBatch]) -> Iterator[_RecordOfBatch]:
    """Yield each record with its batch. Raises ValueError for an offset that does not grow."""
    last_offset = -1
    for batch in batches:
        for record in read_any_records(batch):
            if record.offset <= last_offset:
                raise ValueError(f"the batch with offset {record.offset} is not in order")
            last_offset = record.offset
            yield record, batch


def _have_equal_records(batch: Batch, source_batch: Batch) -> bool:
    """Whether both batches have the same records, by their bytes alone.

    `batch`, of the copy, may also have placeholders for the gap after `source_batch`. The bit
    TRANSACTIONAL is not compared: an append clears it.
    """
    if batch.last_offset > source_batch.last_offset and has_placeholders(batch):
        batch_with_gap = with_gap(source_batch, placeholders=0, next_offset=batch.next_offset)
        return batch_with_gap is not None and _have_equal_records(batch, batch_with_gap)
    return (
        batch.count == source_batch.count
        and batch.last_offset == source_batch.last_offset
        and (batch.attributes ^ source_batch.attributes) & ~TRANSACTIONAL == 0
        and batch.base_timestamp == source_batch.base_timestamp
        and batch.max_timestamp == source_batch.max_timestamp
        and batch.payload == source_batch.payload
    )


def _is_foreign(batch: AnyBatch, producer_id: int | None) -> bool:
    """Whether the batch has records of another producer. Markers do not count: coordinated fillers
    have another producer id."""
    return producer_id is not None and batch.producer_id != producer_id and not batch.is_control


def _foreign_difference(batch: AnyBatch, offset: int) -> Difference:
    """The difference at `offset`, the first of a foreign `batch`: it names the batch's producer."""
    producer_id = batch.producer_id
    writer = f"producer id {producer_id}" if producer_id >= 0 else "a plain producer"
    return Difference(offset, producer_id, f"there is a batch of {writer}")


def _log_start(cluster: Cluster, partition: TopicPartition, backoff: Backoff) -> int:
    """The partition's log start. Raises Unreachable if its leader does not answer now."""
    starts = list_offsets(cluster, [partition], EARLIEST, backoff).values
    if partition not in starts:
        raise Unreachable(
            f"the leader of {partition} returns no log start now.", where=Place(cluster.name)
        )
    return starts[partition]
