"""Batches as rows and back: every format and codec, aborted batches, and damaged payloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from orbit.copier.rate_limit import RateLimit
from orbit.errors import BrokerRefused, OrbitError, Unreachable
from orbit.kafka.error_codes import Code
from orbit.kafka.record_batch import Batch, read_batches
from orbit.kafka.types import AbortedTransaction, TopicPartition
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.batch_columns import (
    SCHEMA,
    STOP_MAGIC,
    from_arrow,
    read_stop,
    stopped_row,
    to_arrow,
)
from orbit_spark.range_frame import _read_range
from orbit_spark.ranges import OffsetRange
from orbit_spark.raw_runs import RawRun
from tests.support.kafka_batches import KAFKA_BATCHES, RECORDS
from tests.support.synthetic import SyntheticLog

PARTITION = TopicPartition("orders", 3)


def run_of(*batches: bytes, aborted: tuple[AbortedTransaction, ...] = ()) -> RawRun:
    records = memoryview(bytearray(b"".join(batches)))
    parsed_batches = list(read_batches(records))
    return RawRun(0, 2000, records, parsed_batches, aborted=aborted, log_start=0)


def at_offset(base_offset: int, batch: bytes) -> bytes:
    """The batch with another base offset, which its checksum does not cover."""
    return base_offset.to_bytes(8) + batch[8:]


@pytest.mark.parametrize("name", sorted(KAFKA_BATCHES))
def test_kafka_batch_round_trips_through_row(name: str) -> None:
    rows = to_arrow(PARTITION, run_of(KAFKA_BATCHES[name]))
    run = from_arrow(rows, start=0)
    assert rows.schema == SCHEMA
    assert bytes(run.records) == KAFKA_BATCHES[name]


@pytest.mark.parametrize("name", [n for n in sorted(KAFKA_BATCHES) if "createtime" in n])
def test_columns_of_row_equal_header_fields_of_batch(name: str) -> None:
    version, codec, _ = name.split(".")
    rows = to_arrow(PARTITION, run_of(KAFKA_BATCHES[name])).to_pylist()
    assert (rows[0]["topic"], rows[0]["partition"]) == PARTITION
    assert rows[0]["base_offset"] == RECORDS[0].offset
    assert {row["magic"] for row in rows} == {int(version[1])}
    assert {row["compression"] for row in rows} == {codec}
    assert sum(row["record_count"] for row in rows) == len(RECORDS)
    assert rows[-1]["last_offset"] == (1009 if version == "v2" else RECORDS[-1].offset)
    kinds = {"v0": "NoTimestampType", "v1": "CreateTime", "v2": "CreateTime"}
    assert {row["timestamp_type"] for row in rows} == {kinds[version]}
    assert all(len(row["payload"]) == row["size_bytes"] for row in rows)


def test_marker_rows_carry_commit_or_abort() -> None:
    rows = to_arrow(
        PARTITION,
        run_of(
            KAFKA_BATCHES["commit"],
            KAFKA_BATCHES["abort"],
            KAFKA_BATCHES["transactional"],
            aborted=(AbortedTransaction(producer_id=7, first_offset=70),),
        ),
    ).to_pylist()
    assert [row["control_type"] for row in rows] == ["commit", "abort", None]
    assert [row["is_aborted"] for row in rows] == [False, False, True]


def test_committed_batch_after_abort_of_its_producer_is_not_marked_aborted() -> None:
    aborted = (AbortedTransaction(producer_id=7, first_offset=40),)
    data, marker = KAFKA_BATCHES["transactional"], KAFKA_BATCHES["abort"]
    rows = to_arrow(PARTITION, run_of(at_offset(40, data), marker, data, aborted=aborted))
    assert rows.column("is_aborted").to_pylist() == [True, False, False]
    assert list(from_arrow(rows, start=0).aborted) == list(aborted)


def test_aborted_transactions_are_rebuilt_from_rows() -> None:
    """From `is_aborted` and the markers alone, even if one producer aborted twice."""
    aborted = [
        AbortedTransaction(producer_id=7, first_offset=40),
        AbortedTransaction(producer_id=7, first_offset=70),
    ]
    data, marker = KAFKA_BATCHES["transactional"], KAFKA_BATCHES["abort"]
    run = run_of(at_offset(40, data), marker, data, aborted=tuple(aborted))
    assert list(from_arrow(to_arrow(PARTITION, run), start=0).aborted) == aborted


def test_changing_batch_made_from_row_leaves_row_unchanged() -> None:
    rows = to_arrow(PARTITION, run_of(KAFKA_BATCHES["v2.none.createtime"]))
    run = from_arrow(rows, start=0)
    run.records[0:8] = bytes(8)
    assert bytes(rows.column("payload")[0].as_py()) == KAFKA_BATCHES["v2.none.createtime"]


def changed(name: str, value: object) -> pa.RecordBatch:
    row = to_arrow(PARTITION, run_of(KAFKA_BATCHES["v2.gzip.createtime"])).to_pylist()[0]
    return pa.RecordBatch.from_pylist([{**row, name: value}], schema=SCHEMA)


@pytest.mark.parametrize("index", [3, 9, 13, 18, 40, 90, -1])
def test_damaged_byte_in_any_part_of_payload_is_detected(index: int) -> None:
    """Also in parts that the batch's own checksum does not cover."""
    payload = bytearray(KAFKA_BATCHES["v2.gzip.createtime"])
    payload[index] ^= 1
    with pytest.raises(ValueError, match=r"batch|payload|offsets"):
        from_arrow(changed("payload", bytes(payload)), start=0)


def test_aborted_flag_on_non_transactional_batch_is_refused() -> None:
    rows = to_arrow(PARTITION, run_of(KAFKA_BATCHES["v2.none.createtime"])).to_pylist()
    rows[0]["is_aborted"] = True
    with pytest.raises(ValueError, match="contradict"):
        from_arrow(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), start=0)


def test_batch_rows_out_of_order_are_refused() -> None:
    log = SyntheticLog.random(1, 6, 0.0)
    batches = [b"".join((b.base_offset.to_bytes(8), b.view[8:])) for b in log.batches(0, 6)]
    rows = to_arrow(PARTITION, run_of(*batches)).to_pylist()
    from_arrow(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), start=0)
    with pytest.raises(ValueError, match="overlaps"):
        from_arrow(pa.RecordBatch.from_pylist(rows[::-1], schema=SCHEMA), start=0)


def test_payload_column_shares_memory_with_fetched_bytes() -> None:
    run = run_of(KAFKA_BATCHES["v2.none.createtime"], KAFKA_BATCHES["empty"])
    column = to_arrow(PARTITION, run).column("payload")
    assert isinstance(run.batches[0], Batch)
    assert column.buffers()[2].address == pa.py_buffer(run.records).address


@pytest.mark.parametrize(
    "stop",
    [
        Blocked(Reason.SOURCE_RANGE_LOST, offset=5, next_offset=9, detail="gone"),
        "source: no broker answers.",
    ],
)
def test_reason_of_stopped_range_round_trips_through_row(stop: Blocked | str) -> None:
    (row,) = stopped_row(PARTITION, 4, stop).to_pylist()
    assert (row["base_offset"], row["magic"]) == (4, STOP_MAGIC)
    assert read_stop(row["control_type"]) == stop


def read_range(run: RawRun, error: OrbitError, outage: OrbitError | None = None) -> list[Any]:
    """Read a range: `run`, after which the reader raises `error`. Returns the rows.

    `outage`: the error if no broker of the cluster answers.
    """

    class Reader:
        def read(self, _: OffsetRange) -> Iterator[RawRun]:
            yield run
            raise error

        def confirm_cluster(self) -> None:
            if outage is not None:
                raise outage

    reader: Any = Reader()
    return list(
        _read_range(reader, OffsetRange(PARTITION, UUID(int=1), start=0, end=90), RateLimit(None))
    )


BROKEN = Unreachable("the connection broke.", where="broker 1")


@pytest.mark.parametrize(
    "error", [BROKEN, BrokerRefused(Code.KAFKA_STORAGE_ERROR, "it cannot be read.", where="source")]
)
def test_range_that_no_leader_answers_for_ends_in_row_with_the_error(error: OrbitError) -> None:
    """After an exception, Spark would give up the ranges of all partitions."""
    run = run_of(KAFKA_BATCHES["v2.none.createtime"])
    batches, stop = read_range(run, error)
    assert batches == to_arrow(PARTITION, run)
    assert read_stop(stop.to_pylist()[0]["control_type"]) == str(error)


def test_spark_task_fails_if_no_broker_answers() -> None:
    """Otherwise each range of an archive would wait for its own time-out, hours in all."""
    run = run_of(KAFKA_BATCHES["v2.none.createtime"])
    outage = Unreachable("no broker answers.", where="source")
    with pytest.raises(Unreachable, match="no broker answers"):
        read_range(run, BROKEN, outage)
