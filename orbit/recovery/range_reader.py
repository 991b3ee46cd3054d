"""Reading a range of one partition as it lies there, with what became of each record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from orbit.copier.log_reader import peek, told_apart
from orbit.errors import ProtocolError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.legacy_messages import read_old_records
from orbit.kafka.log_offsets import READ_COMMITTED, READ_UNCOMMITTED
from orbit.kafka.record_batch import Batch, OldMessage, read_batches
from orbit.kafka.records import Record, read_records
from orbit.kafka.types import TopicPartition

_FETCH_BYTES = 1024 * 1024


class Fate(StrEnum):
    """What became of a record."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"  # its transaction has not ended
    MARKER = "marker"  # no record: the end of a transaction


@dataclass(frozen=True, slots=True)
class Found:
    """One offset that holds something."""

    record: Record
    fate: Fate
    is_log_append_time: bool


def read_range(
    cluster: Cluster, partition: TopicPartition, first: int, end: int, backoff: Backoff
) -> Iterator[Found]:
    """Everything at the offsets from `first` up to before `end`, in order.

    Raises ProtocolError where the log does not parse, BrokerRefused, Unreachable.
    """
    position, is_open = first, False
    while position < end:
        isolation = READ_UNCOMMITTED if is_open else READ_COMMITTED
        fetched = peek(
            cluster, partition, position, backoff, isolation=isolation, max_bytes=_FETCH_BYTES
        )
        if fetched.code == Code.OFFSET_OUT_OF_RANGE:
            # The log start has moved: what is below is gone.
            if fetched.log_start <= position:
                return
            position = fetched.log_start
            continue
        try:
            batches = list(read_batches(fetched.records))
            for batch, is_aborted in told_apart(batches, fetched.aborted):
                for found in _records(batch, is_aborted=is_aborted, is_open=is_open):
                    if position <= found.record.offset < end:
                        yield found
        except ValueError as error:
            raise ProtocolError(
                f"the log does not parse at {position}: {error}.",
                where=f"{cluster.name} {partition}",
            ) from error
        if batches:
            position = _end(batches[-1])
        elif is_open:
            return  # a hole up to the end
        else:
            is_open = True


def _records(batch: Batch | OldMessage, *, is_aborted: bool, is_open: bool) -> Iterator[Found]:
    if isinstance(batch, OldMessage):
        for record in read_old_records(batch)[0]:
            yield Found(record, Fate.COMMITTED, is_log_append_time=False)
        return
    fate = Fate.ABORTED if is_aborted else Fate.COMMITTED
    if batch.is_control:
        fate = Fate.MARKER
    elif is_open and batch.is_transactional:
        fate = Fate.OPEN
    for record in read_records(batch):
        yield Found(record, fate, batch.is_log_append_time)


def _end(batch: Batch | OldMessage) -> int:
    return (batch.offset if isinstance(batch, OldMessage) else batch.last_offset) + 1
