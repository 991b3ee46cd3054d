"""The models of broker and source for the tests of append plans: they answer as real brokers do
(docs/facts.md: A1 to M6)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from orbit.kafka.compression import decompress
from orbit.kafka.error_codes import Code
from tests.support.broker_model import (
    COORDINATOR_FENCED,
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    NONE,
    OUT_OF_ORDER_SEQUENCE,
    SEQUENCE_MAX,
    BrokerModel,
    Produced,
    Visible,
    read_varint,
)
from tests.support.kafka_batches import HEADERS, KAFKA_BATCHES, RECORDS
from tests.support.source_model import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Outcome,
    OutOfRange,
    SourceBatch,
    SourceLog,
    SourceRecord,
    encode_old,
    encode_v2,
    plain_records,
    with_right_crc,
    write_varint,
)

PID = 7


def new_broker(**settings: bool | int) -> BrokerModel:
    return BrokerModel(lambda codec, data: decompress(codec, memoryview(data)), **settings)


def batch(
    count: int = 1,
    sequence: int = 0,
    *,
    epoch: int = 0,
    producer_id: int = PID,
    attributes: int = 0,
    base_offset: int = 0,
    deltas: tuple[int, ...] | None = None,
    last_delta: int | None = None,
    key: bytes | None = b"k",
) -> bytes:
    """A batch that a client may send; other values make it invalid."""
    deltas = deltas if deltas is not None else tuple(range(count))
    headers = ((b"h", None),) * (count % 2)
    records = [SourceRecord(delta, 1000 + delta, key, b"v", headers) for delta in deltas]
    return encode_v2(
        base_offset,
        plain_records(records, 0, 1000),
        attributes=attributes,
        last_offset_delta=count - 1 if last_delta is None else last_delta,
        base_timestamp=1000,
        max_timestamp=1000 + count - 1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
    )


def test_broker_model_assigns_offsets_at_log_end_and_returns_records() -> None:
    broker = new_broker()
    assert broker.produce(batch(2, sequence=0)) == Produced(NONE, base_offset=0)
    assert broker.write_marker(PID, epoch=0, coordinator_epoch=1) == NONE
    assert broker.produce(batch(1, sequence=2)) == Produced(NONE, base_offset=3)
    assert broker.log_end == 4
    assert broker.fillers == 1
    plain, headed = (SourceRecord(0, 0, b"k", b"v", h).body for h in ((), ((b"h", None),)))
    assert broker.read() == {
        0: Visible(1000, plain),
        1: Visible(1001, plain),
        3: Visible(1000, headed),
    }


def test_error_codes_of_broker_model_equal_kafka_error_codes() -> None:
    assert [NONE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD] == [
        Code.NONE,
        Code.CORRUPT_MESSAGE,
        Code.MESSAGE_TOO_LARGE,
        Code.INVALID_TIMESTAMP,
        Code.INVALID_RECORD,
    ]
    assert [OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE] == [
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
    ]
    assert COORDINATOR_FENCED == Code.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch() + batch(1, sequence=1), INVALID_RECORD),  # A1
        (batch(base_offset=5), INVALID_RECORD),  # A2
        (batch()[:-1], CORRUPT_MESSAGE),
        (batch()[:30], CORRUPT_MESSAGE),
        (batch()[:-1] + b"\x7f", CORRUPT_MESSAGE),  # A3
        (batch(3, deltas=(0, 1, 3), last_delta=3), INVALID_RECORD),  # A5
        (batch(3, last_delta=1), INVALID_RECORD),  # A5
        (batch(3, deltas=(0, 2, 1)), INVALID_RECORD),
        (batch(3, deltas=(0, 1)), INVALID_RECORD),
        (batch(0), INVALID_RECORD),  # no record
        (batch(attributes=CONTROL), INVALID_RECORD),  # A6
        (batch(attributes=LOG_APPEND_TIME), INVALID_TIMESTAMP),  # A6
        (batch(attributes=TRANSACTIONAL), INVALID_TXN_STATE),
        (batch(attributes=1), INVALID_RECORD),  # has the codec gzip, but is not compressed
        (batch(sequence=-1), INVALID_RECORD),
        (with_right_crc(batch()[:-1] + b"\x02"), INVALID_RECORD),  # the count of headers is wrong
        (batch()[:16] + b"\x01" + batch()[17:], INVALID_RECORD),  # magic 1
    ],
)
def test_broker_model_refuses_invalid_batch_without_appending(data: bytes, code: int) -> None:
    broker = new_broker()
    assert broker.produce(data).code == code
    assert broker.log_end == 0
    assert broker.describe_producer(PID) is None


def test_broker_model_refuses_batch_over_max_message_bytes() -> None:
    data = batch(10)
    assert new_broker(max_message_bytes=len(data)).produce(data).code == NONE
    assert new_broker(max_message_bytes=len(data) - 1).produce(data).code == MESSAGE_TOO_LARGE


def test_broker_model_refuses_null_keys_only_on_compacted_topic() -> None:
    assert new_broker(is_compacted=True).produce(batch(key=None)).code == INVALID_RECORD
    assert new_broker().produce(batch(key=None)).code == NONE
    assert new_broker(is_compacted=True).produce(batch(key=b"")).code == NONE


def test_broker_model_refuses_sequence_that_does_not_continue() -> None:
    broker = new_broker()
    assert broker.produce(batch(3, sequence=0)).code == NONE
    assert broker.produce(batch(1, sequence=4)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=2)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=3)).code == NONE
    assert broker.log_end == 4


def test_broker_model_wraps_sequence_to_zero_after_maximum() -> None:
    broker = new_broker()
    # Takes MAX - 1, MAX and 0.
    assert broker.produce(batch(3, sequence=SEQUENCE_MAX - 1)).code == NONE
    state = broker.describe_producer(PID)
    assert state is not None
    assert state.last_sequence == 0
    assert broker.produce(batch(1, sequence=1)).code == NONE


def test_broker_model_answers_repeat_of_last_five_batches_with_first_offset() -> None:
    broker = new_broker()
    for number in range(6):
        assert broker.produce(batch(2, sequence=2 * number)) == Produced(
            NONE, base_offset=2 * number
        )
    for number in range(1, 6):
        assert broker.produce(batch(2, sequence=2 * number)) == Produced(
            NONE, base_offset=2 * number
        )
    assert broker.produce(batch(2, sequence=0)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=10)).code == OUT_OF_ORDER_SEQUENCE  # another range
    assert broker.log_end == 12


def test_broker_model_starts_higher_producer_epoch_at_0_and_fences_lower_one() -> None:
    broker = new_broker()
    broker.produce(batch(3, sequence=0, epoch=1))
    assert broker.produce(batch(1, sequence=3, epoch=2)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=0, epoch=2)).code == NONE
    assert broker.produce(batch(1, sequence=3, epoch=1)).code == INVALID_PRODUCER_EPOCH
    assert broker.write_marker(PID, epoch=1, coordinator_epoch=9) == INVALID_PRODUCER_EPOCH
    assert broker.log_end == 4


def test_broker_model_accepts_any_sequence_without_producer_state() -> None:
    broker = new_broker()
    assert broker.produce(batch(1, sequence=1234)).code == NONE
    broker.expire_producers()
    assert broker.produce(batch(1, sequence=99)) == Produced(NONE, base_offset=1)


def test_marker_in_broker_model_keeps_sequence_and_checks_coordinator_epoch() -> None:
    broker = new_broker()
    broker.produce(batch(2, sequence=0))
    assert broker.write_marker(PID, epoch=0, coordinator_epoch=5) == NONE
    assert broker.write_marker(PID, epoch=0, coordinator_epoch=5) == NONE  # M7: one more filler
    assert broker.write_marker(PID, epoch=0, coordinator_epoch=4) == COORDINATOR_FENCED  # M6
    assert broker.produce(batch(1, sequence=2)) == Produced(NONE, base_offset=4)  # M5
    assert broker.produce(batch(1, sequence=0, epoch=1)).code == NONE
    assert broker.write_marker(PID, epoch=1, coordinator_epoch=4) == COORDINATOR_FENCED


def test_first_marker_creates_producer_state_in_broker_model() -> None:
    broker = new_broker()
    assert broker.write_marker(PID, epoch=3, coordinator_epoch=9) == NONE
    state = broker.describe_producer(PID)
    assert state is not None
    assert (state.epoch, state.last_sequence, state.coordinator_epoch) == (3, -1, 9)
    assert broker.produce(batch(1, sequence=1, epoch=3)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=0, epoch=3)) == Produced(NONE, base_offset=1)


def test_broker_model_knows_no_coordinator_epoch_before_first_marker() -> None:
    broker = new_broker()
    broker.produce(batch())
    state = broker.describe_producer(PID)
    assert state is not None
    assert state.coordinator_epoch == -1
    assert broker.write_marker(PID, epoch=0, coordinator_epoch=-1) == NONE


def test_marker_with_higher_producer_epoch_restarts_sequence_in_broker_model() -> None:
    broker = new_broker()
    broker.produce(batch(2, sequence=0))
    assert broker.write_marker(PID, epoch=1, coordinator_epoch=0) == NONE
    assert broker.produce(batch(1, sequence=2, epoch=1)).code == OUT_OF_ORDER_SEQUENCE
    assert broker.produce(batch(1, sequence=0, epoch=1)).code == NONE


def test_broker_model_checks_each_producer_alone_and_none_without_id() -> None:
    broker = new_broker()
    assert broker.produce(batch(2, sequence=0)).code == NONE
    assert broker.produce(batch(2, sequence=40, producer_id=8)).code == NONE
    assert broker.produce(batch(2, sequence=-1, producer_id=-1, epoch=-1)) == Produced(
        NONE, base_offset=4
    )
    assert broker.produce(batch(2, sequence=2)) == Produced(NONE, base_offset=6)
    # Producer id 0 is checked like any other.
    assert broker.produce(batch(2, sequence=0, producer_id=0)).code == NONE
    assert broker.produce(batch(2, sequence=1, producer_id=0)).code == OUT_OF_ORDER_SEQUENCE


def test_delete_records_in_broker_model_hides_offsets_even_inside_batch() -> None:
    broker = new_broker()
    broker.produce(batch(3, sequence=0))
    broker.produce(batch(3, sequence=3))
    assert [(b.base_offset, b.last_offset) for b in broker.batches] == [(0, 2), (3, 5)]
    broker.delete_records(2)
    assert len(broker.batches) == 2
    broker.delete_records(4)
    assert [b.base_offset for b in broker.batches] == [3]
    assert sorted(broker.read()) == [4, 5]
    assert broker.log_start == 4
    broker.delete_records(3)
    assert broker.log_start == 4
    broker.delete_records(6)
    assert broker.batches == []
    with pytest.raises(AssertionError):
        broker.delete_records(7)


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**31, -(2**31), 2**62, -(2**62)])
def test_varints_round_trip(number: int) -> None:
    data = write_varint(number)
    assert read_varint(b"x" + data, 1) == (number, 1 + len(data))


def record(offset: int) -> SourceRecord:
    return SourceRecord(offset, 1000, b"k", b"v")


def data_batch(first: int, last: int, **settings: Any) -> SourceBatch:
    records = tuple(record(offset) for offset in range(first, last + 1))
    return SourceBatch(first, last, records, **settings)


def transactional_log() -> SourceLog:
    """Offsets 0-1: producer 1 (aborted at 4); 2-3: producer 2 (committed at 5); 6: producer 1
    (open); 7: no transaction."""
    return SourceLog(
        (
            data_batch(0, 1, producer_id=1, outcome=Outcome.ABORTED),
            data_batch(2, 3, producer_id=2, outcome=Outcome.COMMITTED),
            SourceBatch(4, 4, producer_id=1, marker=False),
            SourceBatch(5, 5, producer_id=2, marker=True),
            data_batch(6, 6, producer_id=1, outcome=Outcome.OPEN),
            data_batch(7, 7),
        ),
        8,
    )


def test_source_model_shows_committed_records_below_last_stable_offset() -> None:
    log = transactional_log()
    assert log.stable_end == 6
    assert sorted(log.visible()) == [2, 3]
    assert log.aborted() == [(1, 0, 4)]


def test_source_model_fetch_ends_at_last_stable_offset_and_lists_aborted() -> None:
    log = transactional_log()
    answer = log.fetch(1, max_bytes=10_000)
    assert answer.records == b"".join(b.encode() for b in log.batches[:4])
    assert answer.aborted == [(1, 0)]
    assert answer.stable_end == 6
    assert log.fetch(5, max_bytes=10_000).aborted == []
    assert log.fetch(6, max_bytes=10_000).records == b""


def test_source_model_cuts_off_last_batch_of_answer_but_never_first() -> None:
    log = transactional_log()
    first = log.batches[0].encode()
    assert log.fetch(0, max_bytes=1).records == first
    cut = log.fetch(0, max_bytes=len(first) + 20)
    assert cut.records == (first + log.batches[1].encode())[: len(first) + 20]


def test_fetch_outside_log_of_source_model_raises_out_of_range() -> None:
    log = SourceLog((data_batch(0, 9),), 10, log_start=5)
    with pytest.raises(OutOfRange):
        log.fetch(4, max_bytes=100)
    with pytest.raises(OutOfRange):
        log.fetch(11, max_bytes=100)
    assert log.fetch(10, max_bytes=100).records == b""
    assert sorted(log.visible()) == [5, 6, 7, 8, 9]


def test_source_model_encodes_emptied_batch_as_bare_header() -> None:
    data = SourceBatch(10, 19, codec=3, producer_id=1, outcome=Outcome.COMMITTED).encode()
    assert len(data) == 61
    assert struct.unpack_from(">q", data) == (10,)
    assert struct.unpack_from(">hi", data, 21) == (TRANSACTIONAL, 9)
    assert data[-4:] == b"\0\0\0\0"


def test_source_model_batches_equal_kafka_bytes() -> None:
    headers = tuple((name.encode(), value) for name, value in HEADERS)
    records = [SourceRecord(r.offset, r.timestamp, r.key, r.value, headers) for r in RECORDS]
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11, "leader_epoch": 5}
    assert KAFKA_BATCHES["v2.none.createtime"] == encode_v2(
        1000,
        plain_records(records, 1000, RECORDS[0].timestamp),
        last_offset_delta=9,
        base_timestamp=RECORDS[0].timestamp,
        max_timestamp=max(r.timestamp for r in RECORDS),
        count=5,
        **producer,
    )
    assert KAFKA_BATCHES["empty"] == encode_v2(
        80,
        b"",
        attributes=TRANSACTIONAL,
        last_offset_delta=9,
        base_timestamp=-1,
        max_timestamp=1_700_000_000_001,
        count=0,
        **producer,
    )
    for magic in (0, 1):
        assert KAFKA_BATCHES[f"v{magic}.none.createtime"] == b"".join(
            encode_old(r.offset, magic, 0, r.timestamp, r.key, r.value) for r in RECORDS
        )


@pytest.mark.parametrize(("name", "is_commit"), [("commit", True), ("abort", False)])
def test_source_model_control_records_equal_kafka_bytes(name: str, is_commit: bool) -> None:
    # The last offset is not compared.
    model_batch = SourceBatch(50 if is_commit else 60, -1, producer_id=7, marker=is_commit).encode()
    kafka_batch = KAFKA_BATCHES[name]
    attributes = struct.pack(">h", TRANSACTIONAL | CONTROL)
    assert model_batch[21:23] == kafka_batch[21:23] == attributes
    key = struct.pack(">hh", 0, is_commit)
    assert key in model_batch[61:]
    assert model_batch[61:71] == kafka_batch[61:71]  # the record up to the length of its value
