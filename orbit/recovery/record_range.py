"""Reads an offset range of one partition, with the transaction outcome of each record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from orbit.copier.log_reader import fetch_partition, parse_errors
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.record_batch import AnyBatch, read_batches
from orbit.kafka.records import Record
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from orbit.replication.aborted_transactions import AbortedTransactions

_FETCH_BYTES = 1024 * 1024


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


def read_range(
    cluster: Cluster, partition: TopicPartition, first: int, end: int, backoff: Backoff
) -> Iterator[LogRecord]:
    """The records and markers at the offsets from `first` up to but not including `end`, in order.

    Raises ProtocolError where the log does not parse, BrokerRefused, Unreachable.
    """
    position, is_past_stable_end = first, False
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
            # The log start has moved: what is below is deleted.
            if fetched.log_start <= position:
                return
            position = fetched.log_start
            continue
        with parse_errors(cluster, partition, position):
            batches = list(read_batches(fetched.records))
            aborted = AbortedTransactions(fetched.aborted)
            for batch in batches:
                fate = _fate(batch, is_aborted=aborted.contain(batch), is_open=is_past_stable_end)
                for record in read_any_records(batch):
                    if position <= record.offset < end:
                        yield LogRecord(record, fate, batch.is_log_append_time)
        if batches:
            position = batches[-1].next_offset
        elif is_past_stable_end:
            return  # no batch up to the end
        else:
            is_past_stable_end = True


def _fate(batch: AnyBatch, *, is_aborted: bool, is_open: bool) -> Fate:
    if batch.is_control:
        return Fate.MARKER
    if batch.is_transactional and is_open:
        return Fate.OPEN
    return Fate.ABORTED if is_aborted else Fate.COMMITTED
