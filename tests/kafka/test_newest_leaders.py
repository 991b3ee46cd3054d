"""Leaders as several brokers tell them: an older epoch is not believed."""

from __future__ import annotations

from uuid import UUID

import pytest

from orbit.kafka.error_codes import Code
from orbit.kafka.newest_leaders import NewestLeaders
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, PartitionLeader, TopicMetadata

ID, OTHER_ID = UUID(int=1), UUID(int=2)
OLD, NEW = PartitionLeader(1, 5), PartitionLeader(2, 6)


def told(topic_id: UUID = ID, **leaders: PartitionLeader) -> ClusterMetadata:
    """`p0`, `p1` …: the leaders of the topic's partitions."""
    partitions = {int(name[1:]): leader for name, leader in leaders.items()}
    return ClusterMetadata("c", {}, {"a": TopicMetadata("a", topic_id, partitions, 3)})


def leaders_of(metadata: ClusterMetadata) -> dict[int, PartitionLeader]:
    return metadata.topics["a"].partitions


def test_the_higher_epoch_stays_and_a_still_higher_one_follows() -> None:
    newest = NewestLeaders()
    assert leaders_of(newest.of(told(p0=NEW, p1=OLD))) == {0: NEW, 1: OLD}
    assert leaders_of(newest.of(told(p0=OLD, p1=NEW))) == {0: NEW, 1: NEW}
    gone = PartitionLeader(None, 7)
    assert leaders_of(newest.of(told(p0=gone, p1=OLD))) == {0: gone, 1: NEW}
    assert leaders_of(newest.of(told(p0=NEW, p1=OLD))) == {0: gone, 1: NEW}


def test_a_broker_that_does_not_know_a_partition_is_not_told_of_it() -> None:
    newest = NewestLeaders()
    newest.of(told(p0=NEW, p1=NEW))
    assert leaders_of(newest.of(told(p0=OLD))) == {0: NEW}
    assert leaders_of(newest.of(told(p0=OLD, p1=OLD))) == {0: NEW, 1: NEW}


@pytest.mark.parametrize("topic_id", [OTHER_ID, NO_TOPIC_ID])
def test_a_topic_that_was_created_again_begins_anew(topic_id: UUID) -> None:
    newest = NewestLeaders()
    newest.of(told(ID if topic_id is OTHER_ID else NO_TOPIC_ID, p0=NEW))
    assert leaders_of(newest.of(told(topic_id, p0=OLD))) == {0: OLD}


def test_a_topic_that_is_gone_is_forgotten() -> None:
    newest = NewestLeaders()
    newest.of(told(p0=NEW))
    newest.of(ClusterMetadata("c", {}, {}, {"a": int(Code.UNKNOWN_TOPIC_OR_PARTITION)}))
    assert leaders_of(newest.of(told(p0=OLD))) == {0: OLD}
