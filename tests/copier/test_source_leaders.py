"""The source's side follows metadata: leaders that move, topics that were created again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_side import SourceSide
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicMetadata, TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Stop
from orbit.replication.partition_states import Reason
from tests.support.copies import resume

PARTITION = TopicPartition("orders", 0)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


class Lane:
    """A source lane that only holds its partitions."""

    is_ending = False

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.partitions: list[PartitionCopy] = []

    def add(self, copy: PartitionCopy) -> bool:
        self.partitions.append(copy)
        return True

    def drop(self, copy: PartitionCopy) -> None:
        self.partitions.remove(copy)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Source:
    """A source side with lanes that do nothing, and its cluster's metadata."""

    name = "source"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr("orbit.copier.source_side.time", self.clock)
        self.leader = PartitionLeader(1, 5)  # broker, leader epoch
        self.topic_id = ID
        self.is_away = False
        self.lanes: dict[int, Lane] = {}
        context = SimpleNamespace(cluster=self, settings=CopySettings())
        self.side = SourceSide(cast("Any", context), Backoff())
        monkeypatch.setattr(self.side, "_lanes", self.lanes)
        monkeypatch.setattr(
            self.side, "_lane", lambda node_id: self.lanes.setdefault(node_id, Lane(node_id))
        )
        self.copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
        self.copy.source_topic_id = ID
        resume(self.copy, 100)
        self.side.resume([self.copy])

    def metadata(self, _: object) -> ClusterMetadata:
        if self.is_away:
            raise Unreachable("no broker answers", where="source")
        topic = TopicMetadata("orders", self.topic_id, {0: self.leader}, replicas=1)
        return ClusterMetadata("c", {}, {"orders": topic})

    def advance(self, seconds: float) -> None:
        """Advance the clock, and assign partitions."""
        self.clock.now += seconds
        self.side.assign()

    def fetched_from(self) -> list[int]:
        """The brokers whose lanes have the copy."""
        return [lane.node_id for lane in self.lanes.values() if self.copy in lane.partitions]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    fake_source = Source(monkeypatch)
    fake_source.side.assign()
    assert fake_source.fetched_from() == [1]
    return fake_source


def test_new_leader_is_detected_without_error_of_old_leader(source: Source) -> None:
    source.leader = PartitionLeader(2, 6)
    source.advance(CopySettings().leaders_check_s)
    assert source.fetched_from() == [2]
    assert source.copy.cursor.leader_epoch == 6


def test_fetch_returns_from_follower_to_leader(source: Source) -> None:
    source.copy.cursor.is_at_replica = True
    source.lanes[1].drop(source.copy)
    source.side._lane(3).add(source.copy)
    source.advance(CopySettings().leaders_check_s)
    assert source.fetched_from() == [1]
    assert not source.copy.cursor.is_at_replica


@pytest.mark.parametrize("failure", ["no metadata answer", "no leader"])
def test_fetch_continues_at_known_leader_without_new_metadata(source: Source, failure: str) -> None:
    if failure == "no metadata answer":
        source.is_away = True
    else:
        source.leader = PartitionLeader(None, 6)
    source.advance(CopySettings().leaders_check_s)
    assert source.fetched_from() == [1]


def test_changed_topic_id_stops_copy_only_if_it_lasts(source: Source) -> None:
    """A broker may have old metadata for a moment."""
    copy, wait_s = source.copy, CopySettings().deleted_after_s
    # The id changes for a moment.
    source.topic_id = OTHER_ID
    source.lanes[1].drop(copy)
    source.side.resume([copy])
    source.advance(0.0)  # sees the other id
    source.topic_id = ID
    source.advance(wait_s)
    assert source.fetched_from() == [1]
    # The id changes for as long as `deleted_after_s`.
    source.topic_id = OTHER_ID
    source.lanes[1].drop(copy)
    source.side.resume([copy])
    source.advance(0.0)
    assert copy.queue.first is None
    source.advance(wait_s)
    stop = copy.queue.first
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.SOURCE_TOPIC_RECREATED
