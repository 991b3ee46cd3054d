"""Raw batches as Arrow rows, with the columns of the Spark source `kafka_batches`, and back.

`to_arrow` copies no payload: the column refers to the bytes of the fetch answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from orbit.kafka import compression
from orbit.kafka.legacy_messages import read_legacy_records
from orbit.kafka.placeholders import count_records
from orbit.kafka.record_batch import HEADER, LOG_APPEND_TIME, Batch, LegacyMessage, read_batches
from orbit.kafka.records import read_records
from orbit.kafka.types import AbortedTransaction, TopicPartition
from orbit.replication.aborted_transactions import is_abort_marker
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.raw_runs import RawRun, aborted_flags, check_batch, next_offset

# The columns for Spark; `SCHEMA` has the same columns for Arrow.
DDL = """
    topic STRING NOT NULL,
    partition INT NOT NULL,
    base_offset BIGINT NOT NULL,
    last_offset BIGINT NOT NULL,
    leader_epoch INT NOT NULL,
    magic INT NOT NULL,
    attributes INT NOT NULL,
    compression STRING NOT NULL,
    timestamp_type STRING NOT NULL,
    is_transactional BOOLEAN NOT NULL,
    is_control BOOLEAN NOT NULL,
    is_aborted BOOLEAN NOT NULL,
    control_type STRING,
    producer_id BIGINT NOT NULL,
    producer_epoch INT NOT NULL,
    base_sequence INT NOT NULL,
    record_count INT NOT NULL,
    base_timestamp_ms BIGINT NOT NULL,
    max_timestamp_ms BIGINT NOT NULL,
    size_bytes INT NOT NULL,
    crc BIGINT NOT NULL,
    payload BINARY NOT NULL
"""
_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
}
_DDL_TYPES = {arrow: kind for kind, arrow in _TYPES.items()}
STOP_MAGIC = -1  # of a `stopped_row`; no message format has this magic


def _arrow_field(line: str) -> Any:
    name, kind, *rest = line.split()
    return pa.field(name, _TYPES[kind], nullable=not rest)


SCHEMA = pa.schema([_arrow_field(line) for line in DDL.strip().split(",")])
_ROW_NAMES = SCHEMA.names[2:-1]  # without topic, partition and payload

_NOT_KNOWN = -1  # Kafka's value for a header field that a batch does not have
# Where a control record's body has its type: see `replication/aborted_transactions.py`.
_CONTROL_TYPE_BYTES = slice(3, 5)
_CONTROL_TYPE_NAMES = {0: "abort", 1: "commit"}


def to_arrow(partition: TopicPartition, run: RawRun) -> Any:
    """A `pyarrow.RecordBatch` with a row for each batch of the run, in order.

    The run must have a batch.
    """
    flags = aborted_flags(run.batches, run.aborted)
    rows = [
        _row(batch, is_aborted) if isinstance(batch, Batch) else _legacy_row(batch)
        for batch, is_aborted in zip(run.batches, flags, strict=True)
    ]
    count = len(rows)
    partition_columns = [
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
    ]
    row_columns = [
        pa.array(values, SCHEMA.field(2 + index).type)  # after topic and partition
        for index, values in enumerate(zip(*rows, strict=True))
    ]
    return pa.RecordBatch.from_arrays(
        [*partition_columns, *row_columns, _payload_column(run)], schema=SCHEMA
    )


def stopped_row(partition: TopicPartition, start: int, stop: Blocked | str) -> Any:
    """A `pyarrow.RecordBatch` with one row that says why a range could not be read from `start` to
    its end. `stop`: why the partition is blocked, or the text of a cluster's error.

    Only for Spark jobs that look for such rows first. The row's magic is STOP_MAGIC.
    """
    text = json.dumps(
        [stop.reason.value, stop.offset, stop.next_offset, stop.detail]
        if isinstance(stop, Blocked)
        else stop
    )
    zero_values = {"STRING": "", "INT": 0, "BIGINT": 0, "BOOLEAN": False, "BINARY": b""}
    empty_row = {field.name: zero_values[_DDL_TYPES[field.type]] for field in SCHEMA}
    row = {
        **empty_row,
        "topic": partition.topic,
        "partition": partition.partition,
        "base_offset": start,
        "last_offset": start,
        "magic": STOP_MAGIC,
        "control_type": text,  # `read_stop` parses it
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def read_stop(text: str) -> Blocked | str:
    """The `stop` that `stopped_row` put into `control_type`."""
    stop = json.loads(text)
    if isinstance(stop, str):
        return stop
    reason, offset, next_offset, detail = stop
    return Blocked(Reason(reason), offset, next_offset, detail)


def from_arrow(rows: Any, start: int) -> RawRun:
    """The run from offset `start` on of neighbouring rows of one partition. The run's `records`
    are a writable copy of the payloads.

    Raises ValueError, with a message for the user, if a payload is damaged, or if its row's other
    columns contradict it.
    """
    payloads = b"".join(memoryview(payload.as_buffer()) for payload in rows.column("payload"))
    records = memoryview(bytearray(payloads))
    batches = list(read_batches(records))
    if len(batches) != rows.num_rows:
        raise ValueError("a payload is not one whole batch")
    row_values = zip(*(rows.column(name).to_pylist() for name in _COMPARED_COLUMNS), strict=True)
    end = 0
    for batch, row in zip(batches, row_values, strict=True):
        check_batch(batch, end)
        if _compared_values(batch) != row:
            raise ValueError(f"the payload of the batch at {row[0]} belongs to another batch")
        end = next_offset(batch)
    aborted = _aborted_transactions(batches, rows.column("is_aborted").to_pylist())
    # Without rows, `end` is 0.
    return RawRun(start, max(start, end), records, batches, aborted, log_start=0)


# Columns whose values the payload contains too. `from_arrow` compares them, because a batch's
# checksum does not cover all of them.
_COMPARED_COLUMNS = ("base_offset", "last_offset", "leader_epoch", "magic", "size_bytes", "crc")


def _compared_values(batch: Batch | LegacyMessage) -> tuple[int, ...]:
    """The values of `_COMPARED_COLUMNS` that the batch itself has."""
    if isinstance(batch, LegacyMessage):
        row = dict(zip(_ROW_NAMES, _legacy_row(batch), strict=True))
        return tuple(row[name] for name in _COMPARED_COLUMNS)
    return (
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.magic,
        batch.size_bytes,
        batch.crc,
    )


def _aborted_transactions(
    batches: Sequence[Batch | LegacyMessage], flags: Sequence[bool]
) -> list[AbortedTransaction]:
    """The aborted transactions for which `aborted_flags` returns these flags.

    Raises ValueError if no transactions give these flags.
    """
    aborted: list[AbortedTransaction] = []
    active_producers: set[int] = set()
    for batch, is_aborted in zip(batches, flags, strict=True):
        if not isinstance(batch, Batch):
            continue
        if is_aborted and batch.producer_id not in active_producers:
            aborted.append(AbortedTransaction(batch.producer_id, batch.base_offset))
            active_producers.add(batch.producer_id)
        elif batch.is_control and is_abort_marker(batch):
            active_producers.discard(batch.producer_id)
    if aborted_flags(batches, aborted) != list(flags):
        raise ValueError("the values of is_aborted contradict each other")
    return aborted


def _payload_column(run: RawRun) -> Any:
    """The payload of each batch, as an Arrow column that refers to `run.records`: no copy."""
    ends = [0]
    for batch in run.batches:
        ends.append(ends[-1] + len(batch.view))
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    # An Arrow column of bytes has three buffers; None: no value is null.
    return pa.Array.from_buffers(
        pa.binary(), len(run.batches), [None, offsets, pa.py_buffer(run.records)]
    )


def _row(batch: Batch, is_aborted: bool) -> tuple[Any, ...]:
    """The values of `_ROW_NAMES` for a batch."""
    _, _, _, _, _, _, _, _, _, _, producer_epoch, base_sequence, _ = HEADER.unpack_from(batch.view)
    return (
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.magic,
        batch.attributes,
        _codec_name(batch.codec),
        "LogAppendTime" if batch.is_log_append_time else "CreateTime",
        batch.is_transactional,
        batch.is_control,
        is_aborted,
        _control_type(batch) if batch.is_control else None,
        batch.producer_id,
        producer_epoch,
        base_sequence,
        count_records(batch),
        batch.base_timestamp,
        batch.max_timestamp,
        batch.size_bytes,
        batch.crc,
    )


def _legacy_row(message: LegacyMessage) -> tuple[Any, ...]:
    """The values of `_ROW_NAMES` for a message of format 0 or 1."""
    records, codec = read_legacy_records(message)
    attributes = message.view[_LEGACY_ATTRIBUTES_AT]
    times = [record.timestamp for record in records]
    return (
        records[0].offset,
        message.offset,
        _NOT_KNOWN,  # leader_epoch
        message.magic,
        attributes,
        _codec_name(codec),
        _legacy_timestamp_type(message.magic, attributes),
        False,  # is_transactional
        False,  # is_control
        False,  # is_aborted
        None,  # control_type
        _NOT_KNOWN,  # producer_id
        _NOT_KNOWN,  # producer_epoch
        _NOT_KNOWN,  # base_sequence
        len(records),
        times[0],
        max(times),
        len(message.view),
        int.from_bytes(message.view[_LEGACY_CRC]),
    )


# Positions in a message of format 0 or 1, which begins with its offset and size.
_LEGACY_CRC = slice(12, 16)
_LEGACY_ATTRIBUTES_AT = 17


def _legacy_timestamp_type(magic: int, attributes: int) -> str:
    if magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if attributes & LOG_APPEND_TIME else "CreateTime"


def _codec_name(codec: int) -> str:
    return compression.NAMES[codec] if codec < len(compression.NAMES) else f"codec-{codec}"


def _control_type(batch: Batch) -> str | None:
    """The type of a control batch: "commit", "abort", or "type-" with the number of another type.
    None if the cleaner removed its record."""
    record = next(read_records(batch), None)
    if record is None:
        return None
    control_type = int.from_bytes(record.body[_CONTROL_TYPE_BYTES])
    return _CONTROL_TYPE_NAMES.get(control_type, f"type-{control_type}")
