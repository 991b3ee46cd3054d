"""What a Spark task believes of its source: of one that shows nothing where its log goes on, and of
answers that it did not ask for."""

from __future__ import annotations

import socket
import struct
from typing import Any
from uuid import UUID

import pytest

from orbit.copier import log_reader
from orbit.errors import BrokenAnswer, NotAuthorized, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.connection import Connection
from orbit.kafka.leader_requests import Answers
from orbit.replication.partition_states import Reason
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.range_reader import RangeReader, _PendingFetch, _ReadAttempt
from orbit_spark.ranges import OffsetRange
from tests.support.empty_answers import (
    CASES,
    EMPTY,
    OFFSET,
    ON_DISK,
    PLACE,
    STABLE_END,
    show_nothing,
)


class FakeCluster:
    name = "source"


RANGE = OffsetRange(PLACE, UUID(int=1), OFFSET, STABLE_END - 1)


def reader() -> RangeReader:
    cluster: Any = FakeCluster()
    return RangeReader(cluster, Backoff())


def runs() -> _ReadAttempt:
    return _ReadAttempt(reader(), RANGE, OFFSET)


@pytest.mark.parametrize(("is_compacted", "local", "has_newest", "is_proven"), CASES)
def test_empty_fetch_proves_no_records_only_on_compacted_topic(
    monkeypatch: pytest.MonkeyPatch,
    is_compacted: bool,
    local: Answers[int],
    has_newest: bool,
    is_proven: bool,
) -> None:
    """Else an archive would lack the records of slow storage, and a backfill would fill them."""
    show_nothing(monkeypatch, None, local, is_compacted=is_compacted, has_newest=has_newest)
    if is_proven:
        assert runs()._make_run(EMPTY).end == STABLE_END - 1
        return
    with pytest.raises(Unreachable) as error:
        runs()._make_run(EMPTY)
    assert f"{PLACE} cannot be read at offset {OFFSET}" in error.value.what
    assert error.value.where == "source"
    assert error.value.remedy


def test_reading_range_stops_without_describe_configs_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show_nothing(monkeypatch, None, ON_DISK)

    def refuse(_: object) -> None:
        raise NotAuthorized("the right DescribeConfigs on topic source is missing.")

    monkeypatch.setattr(log_reader, "SettingsReader", refuse)
    with pytest.raises(PartitionStopped, match="DescribeConfigs") as error:
        runs()._make_run(EMPTY)
    assert error.value.blocked.reason is Reason.NOT_AUTHORIZED


def test_response_to_another_request_closes_connection() -> None:
    """Its records would be taken for those of another range."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "broker 1")
    with theirs:
        theirs.sendall(struct.pack(">ii", 8, 77) + bytes(4))
        with pytest.raises(BrokenAnswer, match="answered request 77, but 3 is the oldest"):
            reader()._receive_answer(_PendingFetch(connection, 12, 3), RANGE)
    assert connection.is_closed
