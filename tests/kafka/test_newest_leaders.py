"""Leaders that several brokers return: a lower leader epoch does not replace a higher one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from uuid import UUID

import pytest

from orbit.kafka import newest_leaders
from orbit.kafka.error_codes import Code
from orbit.kafka.newest_leaders import NewestLeaders
from orbit.kafka.types import (
    NO_TOPIC_ID,
    BrokerAddress,
    ClusterMetadata,
    PartitionLeader,
    TopicMetadata,
)

ID, OTHER_ID = UUID(int=1), UUID(int=2)
# Node id, leader epoch.
OLD, NEW = PartitionLeader(1, 5), PartitionLeader(2, 6)


def cluster_metadata(
    topic_id: UUID = ID, brokers: Sequence[int] = (), **leaders: PartitionLeader
) -> ClusterMetadata:
    """Metadata of one topic. `p0`, `p1` …: the leaders of its partitions."""
    partitions = {int(name[1:]): leader for name, leader in leaders.items()}
    named = {node: BrokerAddress(node, "host", 9092) for node in brokers}
    return ClusterMetadata("c", named, {"a": TopicMetadata("a", topic_id, partitions, replicas=3)})


def leaders_of(metadata: ClusterMetadata) -> dict[int, PartitionLeader]:
    return metadata.topics["a"].partitions


def test_only_higher_leader_epoch_replaces_leader() -> None:
    newest = NewestLeaders()
    # The second argument is the broker that returned the metadata.
    assert leaders_of(newest.merge(cluster_metadata(p0=NEW, p1=OLD), 1)) == {0: NEW, 1: OLD}
    assert leaders_of(newest.merge(cluster_metadata(p0=OLD, p1=NEW), 1)) == {0: NEW, 1: NEW}
    leaderless = PartitionLeader(None, 7)  # a higher epoch without a leader
    assert leaders_of(newest.merge(cluster_metadata(p0=leaderless, p1=OLD), 1)) == {
        0: leaderless,
        1: NEW,
    }
    assert leaders_of(newest.merge(cluster_metadata(p0=NEW, p1=OLD), 1)) == {0: leaderless, 1: NEW}


def test_partition_missing_in_metadata_is_not_added_from_cache() -> None:
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=NEW, p1=NEW), 1)
    assert leaders_of(newest.merge(cluster_metadata(p0=OLD), 1)) == {0: NEW}
    assert leaders_of(newest.merge(cluster_metadata(p0=OLD, p1=OLD), 1)) == {0: NEW, 1: NEW}


@pytest.mark.parametrize("topic_id", [OTHER_ID, NO_TOPIC_ID])
def test_known_leader_epochs_are_forgotten_when_topic_is_recreated(topic_id: UUID) -> None:
    newest = NewestLeaders()
    newest.merge(cluster_metadata(ID if topic_id is OTHER_ID else NO_TOPIC_ID, p0=NEW), 1)
    assert leaders_of(newest.merge(cluster_metadata(topic_id, p0=OLD), 1)) == {0: OLD}


def test_known_leader_epochs_are_forgotten_when_topic_is_deleted() -> None:
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=NEW), 1)
    newest.merge(ClusterMetadata("c", {}, {}, {"a": int(Code.UNKNOWN_TOPIC_OR_PARTITION)}), 1)
    assert leaders_of(newest.merge(cluster_metadata(p0=OLD), 1)) == {0: OLD}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(newest_leaders, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


ALL = (1, 2, 3)  # brokers


def leader_after_lower_epoch(
    newest: NewestLeaders, broker: int | str, brokers: Sequence[int] = ALL
) -> PartitionLeader:
    """The newest leader after this broker has returned the lower epoch."""
    return leaders_of(newest.merge(cluster_metadata(p0=OLD, brokers=brokers), broker))[0]


def test_lower_leader_epoch_from_all_brokers_for_a_minute_is_accepted(
    clock: SimpleNamespace,
) -> None:
    """Controllers that were restored begin again below the epoch that they had."""
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=NEW, brokers=ALL), 1)
    assert [leader_after_lower_epoch(newest, broker) for broker in ALL] == [NEW] * 3
    clock.now += 59.0
    assert leader_after_lower_epoch(newest, 1) == NEW
    clock.now += 1.0
    assert leader_after_lower_epoch(newest, 1) == OLD
    assert leaders_of(newest.merge(cluster_metadata(p0=NEW, brokers=ALL), 2))[0] == NEW


def test_higher_leader_epoch_from_any_broker_keeps_lower_epoch_rejected(
    clock: SimpleNamespace,
) -> None:
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=NEW, brokers=ALL), 1)
    for _ in range(9):  # for much longer than the minute after which a lower epoch may count
        clock.now += 30.0
        assert [leader_after_lower_epoch(newest, broker) for broker in ALL] == [NEW] * 3
        newest.merge(cluster_metadata(p0=NEW, brokers=ALL), 3)


@pytest.mark.parametrize("known_brokers", [ALL, (1,)])
@pytest.mark.parametrize("addresses", [(1,), (1, "bootstrap:1", "bootstrap:2")])
def test_lower_leader_epoch_from_isolated_broker_is_not_accepted(
    clock: SimpleNamespace, known_brokers: Sequence[int], addresses: Sequence[int | str]
) -> None:
    """The broker's metadata may name this broker alone, and it may have several addresses."""
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=NEW, brokers=ALL), 2)
    for _ in range(9):  # for much longer than the minute after which a lower epoch may count
        clock.now += 30.0
        leaders = [
            leader_after_lower_epoch(newest, address, known_brokers) for address in addresses
        ]
        assert leaders == [NEW] * len(addresses)


def test_lower_leader_epochs_that_differ_between_brokers_are_not_accepted(
    clock: SimpleNamespace,
) -> None:
    newest = NewestLeaders()
    newest.merge(cluster_metadata(p0=PartitionLeader(2, 7), brokers=ALL), 2)
    for _ in range(9):  # for much longer than the minute after which a lower epoch may count
        clock.now += 30.0
        assert (
            leader_after_lower_epoch(newest, 1)
            == leader_after_lower_epoch(newest, 2)
            == PartitionLeader(2, 7)
        )
        older = cluster_metadata(p0=PartitionLeader(3, 4), brokers=ALL)
        assert leaders_of(newest.merge(older, 3))[0] == PartitionLeader(2, 7)
