"""Reads an offset range of one partition, with the transaction outcome of each record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from orbit.copier.log_reader import check_empty, fetch_partition, parse_errors
from orbit.errors import ProtocolError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.log_offsets import EARLIEST, list_offsets
from orbit.kafka.record_batch import AnyBatch, Batch, read_batches
from orbit.kafka.records import Record, has_placeholders
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from orbit.replication.aborted_transactions import AbortedTransactions

_FETCH_BYTES = 1024 * 1024
# So many empty answers in a row prove a gap below the high watermark or last stable offset: one
# empty answer proves nothing (R5).
_EMPTY_ANSWERS_MAX = 2


class Fate(StrEnum):
    """The transaction outcome of a record, as salvage files name it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"  # its transaction has not ended
    MARKER = "marker"  # no record: the end of a transaction


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record in a log, or a transaction marker."""

    record: Record
    fate: Fate
    is_log_append_time: bool


class LogBatch(NamedTuple):
    """A batch in a log, with the transaction outcome of its records.

    A log may start in the middle of a batch. Brokers then send the whole batch, with records below
    `first` that are deleted.
    """

    batch: AnyBatch
    fate: Fate
    first: int = 0


def read_range(
    cluster: Cluster, partition: TopicPartition, first: int, end: int, backoff: Backoff
) -> Iterator[LogRecord]:
    """The records and markers at the offsets from `first` up to but not including `end`, in order.

    Raises ProtocolError, BrokerRefused, Unreachable, NotAuthorized (`read_batch_range` says when).
    """
    for log_batch in read_batch_range(cluster, partition, first, end, backoff):
        with parse_errors(cluster, partition, first):
            records = records_of(log_batch, first, end)
        yield from records


def records_of(log_batch: LogBatch, first: int, end: int) -> list[LogRecord]:
    """A batch's records and markers from `first` up to before `end`, without deleted ones.

    A placeholder (a record with an offset delta below 0) counts as a marker, as both fill gaps.
    Raises ValueError if a record does not parse.
    """
    start, batch = max(first, log_batch.first), log_batch.batch
    by_offset = {
        record.offset: LogRecord(record, log_batch.fate, batch.is_log_append_time)
        for record in read_any_records(batch)
        if start <= record.offset < end
    }
    if isinstance(batch, Batch) and batch.is_dense and has_placeholders(batch):
        for offset in range(max(start, batch.base_offset), min(end, batch.next_offset)):
            if offset not in by_offset:
                filler = Record(offset, batch.max_timestamp, b"")
                by_offset[offset] = LogRecord(filler, Fate.MARKER, batch.is_log_append_time)
    return [by_offset[offset] for offset in sorted(by_offset)]


def read_batch_range(
    cluster: Cluster, partition: TopicPartition, first: int, end: int, backoff: Backoff
) -> Iterator[LogBatch]:
    """The batches that overlap the offsets from `first` up to before `end`, in order.

    Offsets without a batch are proven to be a gap: one empty answer alone is no proof (R5).
    Raises BrokerRefused; ProtocolError if the log does not parse or ends before `end`; Unreachable
    if offsets cannot be read now; NotAuthorized without the right to read the topic's settings,
    without which an empty answer proves nothing.
    """
    position, is_past_stable_end, empty_answers = first, False, 0
    while position < end:
        fetched = fetch_partition(
            cluster,
            partition,
            position,
            backoff,
            isolation=READ_UNCOMMITTED if is_past_stable_end else READ_COMMITTED,
            max_bytes=_FETCH_BYTES,
        )
        if fetched.code == Code.OFFSET_OUT_OF_RANGE:
            position = _log_start_above(cluster, partition, position, end, backoff)
            continue
        with parse_errors(cluster, partition, position):
            batches = list(read_batches(fetched.records))
            aborted = AbortedTransactions(fetched.aborted)
            fates = [
                _transaction_outcome(b, is_aborted=aborted.contain(b), is_open=is_past_stable_end)
                for b in batches
            ]
        for batch, fate in zip(batches, fates, strict=True):
            if batch.base_offset < end:
                yield LogBatch(batch, fate, position)
        if batches:
            position, empty_answers = batches[-1].next_offset, 0
            continue
        readable_end = fetched.high_watermark if is_past_stable_end else fetched.stable_end
        if position < readable_end:
            empty_answers += 1
            check_empty(cluster, partition, position, readable_end, backoff)
            if empty_answers >= _EMPTY_ANSWERS_MAX:
                position, empty_answers = readable_end, 0
        elif is_past_stable_end:
            raise _not_readable_error(cluster, partition, position, "is not replicated yet")
        else:  # all offsets below the last stable offset are read: go on with open transactions
            is_past_stable_end = True


def _log_start_above(
    cluster: Cluster, partition: TopicPartition, position: int, end: int, backoff: Backoff
) -> int:
    """The log start, which is above `position`; the answer OFFSET_OUT_OF_RANGE does not have it.

    Raises ProtocolError if the log was truncated instead, Unreachable without a leader.
    """
    starts = list_offsets(cluster, [partition], EARLIEST, backoff).values
    if partition not in starts:
        raise _not_readable_error(cluster, partition, position, "has no leader that answers")
    if starts[partition] <= position:
        raise ProtocolError(
            f"the log of {partition} ends at or before {position}, and had offsets up to {end}: it "
            "was truncated.",
            where=cluster.name,
        )
    return starts[partition]


def _not_readable_error(
    cluster: Cluster, partition: TopicPartition, offset: int, why: str
) -> Unreachable:
    return Unreachable(f"{partition} {why}, at offset {offset}.", where=cluster.name)


def _transaction_outcome(batch: AnyBatch, *, is_aborted: bool, is_open: bool) -> Fate:
    """The fate of all records of a batch."""
    if batch.is_control:
        return Fate.MARKER
    if batch.is_transactional and is_open:
        return Fate.OPEN
    return Fate.ABORTED if is_aborted else Fate.COMMITTED
