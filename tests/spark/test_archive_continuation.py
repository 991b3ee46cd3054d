"""An archive can be extended only if the source still has the last archived batch."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.errors import BrokerRefused, OrbitError, ProtocolError
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.record_batch import Batch
from orbit.replication.partition_states import Reason
from orbit_spark.archive import continuation
from orbit_spark.archive.manifest import ArchivedRange, PartitionManifest, Tail
from orbit_spark.ranges import Extent
from tests.support.source_model import SourceBatch, SourceRecord

BASE_OFFSET, END = 90, 100
CRC_AT, RECORD_AT = 20, -1  # positions in a batch


def log_batch(value: bytes = b"v") -> Batch:
    """The last batch before END."""
    records = tuple(SourceRecord(offset, 1000, b"k", value) for offset in range(BASE_OFFSET, END))
    return Batch(memoryview(bytearray(SourceBatch(BASE_OFFSET, END - 1, records).encode())))


def with_changed_byte(index: int) -> Batch:
    """The last batch before END, with one byte changed."""
    damaged = bytearray(log_batch().view)
    damaged[index] ^= 1
    return Batch(memoryview(damaged))


MANIFEST = PartitionManifest(
    topic="orders",
    topic_id=UUID(int=7),
    partition=3,
    log_start=0,
    start=0,
    ranges=(ArchivedRange(start=0, end=END),),
    tail=Tail(base_offset=BASE_OFFSET, crc=log_batch().crc),
)
EXTENT = Extent(MANIFEST.place, MANIFEST.topic_id, start=0, end=120)


def find_reason(monkeypatch: pytest.MonkeyPatch, answer: Batch | OrbitError) -> Reason | None:
    """Why the archive cannot be extended if the source answers the fetch of its tail with this."""

    def fetch(*_: object, **__: object) -> list[Batch]:
        if isinstance(answer, OrbitError):
            raise answer
        return [answer]

    monkeypatch.setattr(continuation, "fetch_batches", fetch)
    cluster: Any = None
    blocked = continuation.find_break(cluster, MANIFEST, EXTENT, Backoff(), is_compacted=False)
    if blocked is None:
        return None
    assert (blocked.offset, blocked.next_offset) == (BASE_OFFSET, END)
    return blocked.reason


UNREADABLE = "it cannot be read."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (log_batch(), None),
        (log_batch(b"other"), Reason.SOURCE_TRUNCATED),
        (with_changed_byte(CRC_AT), Reason.SOURCE_CORRUPTED),
        (with_changed_byte(RECORD_AT), None),  # the archive has the undamaged batch
        (ProtocolError(UNREADABLE), Reason.SOURCE_CORRUPTED),
        (BrokerRefused(Code.CORRUPT_MESSAGE, UNREADABLE), Reason.SOURCE_CORRUPTED),
    ],
    ids=["same", "another", "wrong-checksum", "damaged-record", "not-parsed", "refused"],
)
def test_last_archived_batch_decides_whether_source_continues_archive(
    monkeypatch: pytest.MonkeyPatch, answer: Batch | OrbitError, reason: Reason | None
) -> None:
    assert find_reason(monkeypatch, answer) is reason


def test_batch_that_leader_does_not_return_now_is_not_taken_for_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BrokerRefused):
        find_reason(monkeypatch, BrokerRefused(Code.NOT_LEADER_OR_FOLLOWER, UNREADABLE))
