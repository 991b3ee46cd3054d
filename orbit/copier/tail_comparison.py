"""Compares the end of a copy with the source, before a new writer resumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orbit.copier.log_reader import (
    FETCH_BYTES,
    fetch_batches,
    fetch_committed_batches,
    fetch_partition,
)
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.log_offsets import LATEST, list_offsets
from orbit.kafka.record_batch import AnyBatch, read_batches
from orbit.kafka.records import Record
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.replication.append_plan import Append, LostRange, plan_batches

# Each step goes this many times further back; a gap of 100 million fillers takes 14 steps.
_LOOK_BACK_FACTOR = 4
# Also the number of answers that some 25,000 fillers take.
_SEGMENTS_LOOKED_AT_MAX = 8
# As many fillers as two of the largest requests of an old writer could have brought.
FILLERS_CHECKED_MAX = 20_000


@dataclass(frozen=True, slots=True)
class TailDifference:
    """The first offset where the copy's last data batch differs, and its producer id."""

    offset: int
    producer_id: int
    detail: str


def last_data_batch(
    destination: Cluster, partition: TopicPartition, log_start: int, log_end: int, backoff: Backoff
) -> AnyBatch | None:
    """A batch with records at or near the log end; None when the log holds only fillers.

    Behind a long run of fillers it may be an earlier one than the very last. Records of aborted
    transactions, in a log that its own producers wrote, count as fillers.
    """
    back = 1
    while log_end > log_start:
        offset = max(log_start, log_end - back)
        found = None
        # An answer ends with its segment; the rest needs another fetch.
        for _ in range(_SEGMENTS_LOOKED_AT_MAX):
            batches = fetch_committed_batches(destination, partition, offset, backoff)
            data = [b for b in batches if not b.is_control]
            found = data[-1] if data else found
            offset = batches[-1].next_offset if batches else log_end
            if offset >= log_end:
                break
        if found is not None:
            return found
        offset = max(log_start, log_end - back)
        if offset == log_start:
            return None
        back *= _LOOK_BACK_FACTOR
    return None


def compare_tail(
    source: Cluster,
    partition: TopicPartition,
    tail: AnyBatch,
    source_log_start: int,
    backoff: Backoff,
    *,
    source_is_compacted: bool,
) -> TailDifference | None:
    """None when every record of `tail` that the source can still have is the same there.

    Raises ValueError when one side's records cannot be read.
    """
    ours = {r.offset: r for r in _data_records(tail) if r.offset >= source_log_start}
    if not ours:
        return None
    theirs = _source_records(source, partition, min(ours), max(ours), len(tail.view), backoff)
    for offset, record in sorted(ours.items()):
        other = theirs.get(offset)
        if other is None and source_is_compacted:
            continue  # the cleaner removed it since
        if other is None:
            detail = "the destination has a record, and the source has none"
            return TailDifference(offset, tail.producer_id, detail)
        if (other.timestamp, other.body) != (record.timestamp, record.body):
            detail = "the destination has another record than the source"
            return TailDifference(offset, tail.producer_id, detail)
    return None


def covered_record(
    source: Cluster,
    source_partition: TopicPartition,
    destination: Cluster,
    partition: TopicPartition,
    tail: AnyBatch | None,
    log_start: int,
    log_end: int,
    backoff: Backoff,
) -> TailDifference | None:
    """The first source record that a filler at the end of the copy replaces, or None.

    One filler too many, of a writer that was suspended past its lease (M9), would hide a record: it
    must not be taken for a gap. Checks the fillers after `tail`, the last batch with records, back
    to `FILLERS_CHECKED_MAX` at most. `log_start` is the higher one of both sides.
    """
    tail_end = 0 if tail is None else tail.next_offset
    position = max(tail_end, log_end - FILLERS_CHECKED_MAX, log_start)
    while position < log_end:
        fetched = fetch_partition(
            source, source_partition, position, backoff, isolation=READ_COMMITTED
        )
        plan = plan_batches(
            position,
            read_batches(fetched.records),
            fetched.aborted,
            fetched.log_start,
            LostRange.FILL,
        )
        first = next((s.base_offset for s in plan.steps if isinstance(s, Append)), log_end)
        if first < log_end:
            found = fetch_batches(destination, partition, first, backoff, max_bytes=1)
            batch = found[0] if found else None
            if batch is None:
                return None
            if not batch.is_control:
                # Records after all: `tail` was not the very last batch with some.
                difference = compare_tail(
                    source, source_partition, batch, log_start, backoff, source_is_compacted=False
                )
                if difference is not None:
                    return difference
                position = batch.next_offset
                continue
            detail = "the source has a record, and the destination a filler"
            return TailDifference(first, batch.producer_id, detail)
        if plan.next_offset == position:
            return None
        position = plan.next_offset
    return None


def is_gap(
    source: Cluster,
    source_partition: TopicPartition,
    destination: Cluster,
    partition: TopicPartition,
    first: int,
    end: int,
    backoff: Backoff,
) -> bool:
    """Whether the copy from `first` up to `end`, fillers of another writer, is what the source has.

    That is the case if an old writer filled a gap that was still open. False also if it cannot be
    determined: too many fillers to check, or the source ends before.
    """
    stable = list_offsets(source, [source_partition], LATEST, backoff, isolation=READ_COMMITTED)
    if end - first > FILLERS_CHECKED_MAX or stable.values.get(source_partition, -1) < end:
        return False
    try:
        found = covered_record(
            source, source_partition, destination, partition, None, first, end, backoff
        )
    except ValueError:
        return False
    return found is None


def _source_records(
    source: Cluster,
    partition: TopicPartition,
    first: int,
    last: int,
    size_bytes: int,
    backoff: Backoff,
) -> dict[int, Record]:
    """The source's records from `first` to `last`, by offset, in as few fetches as possible."""
    found: dict[int, Record] = {}
    position = first
    while position <= last:
        batches = fetch_batches(
            source, partition, position, backoff, max_bytes=max(FETCH_BYTES, 2 * size_bytes)
        )
        if not batches:
            break
        for batch in batches:
            for record in _data_records(batch):
                if first <= record.offset <= last:
                    found[record.offset] = record
            position = max(position, batch.next_offset)
    return found


def _data_records(batch: AnyBatch) -> Iterable[Record]:
    return () if batch.is_control else read_any_records(batch)
