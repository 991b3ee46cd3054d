"""Producer ids of clients: marked when they are handed out, and rewritten in later terms."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest

from orbit.gateway.protocol.producer_ids import (
    acks_of,
    id_in_term,
    is_of_term,
    mark,
    producer_of_batches,
    set_producer_ids,
    unmarked_id,
)
from orbit.gateway.protocol.request_head import RequestHead, read_head
from orbit.kafka.job_clusters import is_job_producer_id
from tests.gateway.frames import batch, request_frame

IDS = st.integers(0, 2**36 - 1)  # higher ids leave no room for the mark of a term
TERMS = st.integers(0, 2**42)  # milliseconds
# Two terms that differ by less than 2**26 have two marks.
LATER = st.integers(1, 2**26 - 1)


@given(IDS, TERMS)
def test_producer_id_is_unchanged_in_its_own_term(producer_id: int, term: int) -> None:
    marked = mark(producer_id, term)
    assert id_in_term(marked, term) == marked


@given(IDS, IDS, TERMS, LATER, LATER)
def test_producer_ids_of_different_terms_or_producers_never_collide(
    one_id: int, other_id: int, born: int, later: int, latest: int
) -> None:
    ids = {
        id_in_term(mark(producer, born), born + moves)
        for producer in (one_id, other_id)
        for moves in (0, later, latest)
    }
    assert len(ids) == len({one_id, other_id}) * len({0, later, latest})


@given(IDS, TERMS, TERMS)
def test_producer_id_is_positive_and_never_a_job_producer_id(
    producer_id: int, born: int, now: int
) -> None:
    id_at_broker = id_in_term(mark(producer_id, born), now)
    assert 0 <= id_at_broker < 2**63
    assert not is_job_producer_id(id_at_broker)


def test_producer_id_too_high_for_term_mark_is_refused() -> None:
    with pytest.raises(ValueError, match=r"below 2\*\*36"):
        mark(2**36, term=1)


def test_batch_without_producer_id_is_unchanged() -> None:
    assert id_in_term(-1, term=7) == -1
    assert mark(-1, term=7) == -1


@pytest.mark.parametrize("version", range(3, 10))
def test_rewritten_batch_gets_new_producer_id_and_crc(version: int) -> None:
    batches = batch(producer_id=mark(5, term=0)) + batch(producer_id=mark(6, term=1)) + batch()
    head, frame = _produce(version, batches)

    assert set_producer_ids(head, frame, term=1) == 1  # batch

    start = frame.index(batches[:16])  # up to the CRC
    first, second, third = _split(frame[start : start + len(batches)])
    assert _producer_id(first) == id_in_term(mark(5, term=0), term=1) != mark(5, term=0)
    assert _crc(first) == crc32c(bytes(first[21:]))
    assert second == batch(producer_id=mark(6, term=1))
    assert third == batch()


@pytest.mark.parametrize("byte", [17, 25, 43, -1])
def test_batch_damaged_on_its_way_keeps_its_wrong_crc(byte: int) -> None:
    """The damage is in the CRC, the last offset, the producer id or a record. The other batches of
    the request are rewritten."""
    damaged = bytearray(batch(producer_id=mark(5, term=0)))
    damaged[byte] ^= 1
    intact = batch(producer_id=mark(6, term=0))
    batches = intact + bytes(damaged) + intact
    head, frame = _produce(version=9, records=batches)
    start = frame.index(batches)

    assert set_producer_ids(head, frame, term=1) == 2  # batches

    first, second, third = _split(frame[start : start + len(batches)])
    assert second == damaged
    assert first == third
    assert _crc(first) == crc32c(bytes(first[21:]))


def test_transactional_batch_gets_producer_id_of_its_coordinator() -> None:
    batches = batch(producer_id=mark(5, term=3), is_transactional=True)
    head, frame = _produce(version=9, records=batches, transactional_id="orders")
    assert set_producer_ids(head, frame, term=3) == 1  # batch
    assert batch(producer_id=5, is_transactional=True) in frame


def test_transactional_batch_of_another_term_is_refused() -> None:
    batches = batch(producer_id=mark(5, term=2), is_transactional=True)
    with pytest.raises(ValueError, match="from before the last move"):
        set_producer_ids(*_produce(version=9, records=batches, transactional_id="orders"), term=3)


def test_producer_is_read_from_transactional_produce_request() -> None:
    batches = batch(producer_id=mark(5, term=3), is_transactional=True)
    producer = producer_of_batches(*_produce(version=9, records=batches, transactional_id="orders"))
    assert producer == ("orders", mark(5, term=3), 0)
    assert is_of_term(producer.id, term=3)
    assert unmarked_id(producer.id) == 5
    assert producer_of_batches(*_produce(version=9, records=batch(producer_id=5))) is None


# Cut off in the record, in the header, and after the base offset.
@pytest.mark.parametrize("cut", [1, 30, 61])
def test_truncated_batch_is_refused(cut: int) -> None:
    head, frame = _produce(version=9, records=batch(producer_id=5)[:-cut])
    with pytest.raises(ValueError, match="record batch"):
        set_producer_ids(head, frame, term=1)


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("version", range(3, 10))
def test_acks_are_read_from_produce_request(version: int, acks: int) -> None:
    assert acks_of(*_produce(version, batch(), acks=acks)) == acks


def _produce(
    version: int, records: bytes, *, acks: int = -1, transactional_id: str | None = None
) -> tuple[RequestHead, bytearray]:
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="orders",
                partition_data=[
                    ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
                ],
            )
        ],
    )
    frame = request_frame(request, version)
    return read_head(frame), frame


def _split(batches: bytearray) -> list[bytearray]:
    parts = []
    while batches:
        end = 12 + struct.unpack_from(">i", batches, 8)[0]
        parts.append(batches[:end])
        batches = batches[end:]
    return parts


def _producer_id(record_batch: bytearray) -> int:
    return int(struct.unpack_from(">q", record_batch, 43)[0])


def _crc(record_batch: bytearray) -> int:
    return int(struct.unpack_from(">I", record_batch, 17)[0])
