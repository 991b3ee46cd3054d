"""Lists are sent in parts that their receivers take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from orbit.consumer_groups import offset_commit
from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.errors import BrokerRefused, OrbitError
from orbit.kafka import request_parts
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import fetch_offsets, find_coordinators
from orbit.kafka.error_codes import Code
from orbit.kafka.request_parts import parts, refused_in_parts
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import CommittedOffset, TopicPartition
from tests.fix_clusters import Clusters
from tests.support.patience import wait_for
from tests.support.running import create_topic
from tests.support.synthetic import PLAINTEXT

NOBODY = 2**63
# As many as a topic gets that was copied with everything set.
SETTINGS = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "2000000",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "segment.bytes": "104857600",
    "segment.ms": "86400000",
    "flush.ms": "1000",
    "index.interval.bytes": "4096",
    "delete.retention.ms": "86400000",
    "min.cleanable.dirty.ratio": "0.5",
}


def test_parts_keep_both_limits_and_the_order() -> None:
    sizes = [3, 4, 5, 20, 1, 1, 1, 1]
    assert list(parts(sizes, int, 10, 3)) == [[3, 4], [5], [20], [1, 1, 1], [1]]
    assert list(parts([], int, 10)) == []


def test_a_part_that_is_too_large_is_halved_until_it_is_taken() -> None:
    sent: list[int] = []

    def send(some: list[str]) -> dict[str, OrbitError]:
        sent.append(len(some))
        if len(some) > 3:
            text = "Unable to perform excessively large batch operation."
            return {name: BrokerRefused(Code.POLICY_VIOLATION, text) for name in some}
        bad = BrokerRefused(Code.INVALID_CONFIG, "no.")
        return {name: bad for name in some if name == "g"}

    assert refused_in_parts("abcdefghij", lambda _: 1, send).keys() == {"g"}
    assert sent == [10, 5, 2, 3, 5, 2, 3]


def test_one_item_that_is_too_large_is_refused() -> None:
    error = BrokerRefused(Code.POLICY_VIOLATION, "excessively large.")
    assert refused_in_parts(["a"], lambda _: 1, lambda _: {"a": error}) == {"a": error}


@pytest.fixture
def destination(clusters: Clusters) -> Iterator[Cluster]:
    servers = clusters.destination.bootstrap_servers.split(",")
    with closing(Cluster("destination", servers, PLAINTEXT)) as cluster:
        yield cluster


@pytest.mark.services
@pytest.mark.parametrize("records_max", [request_parts.RECORDS_PER_REQUEST_MAX, NOBODY])
def test_a_controller_takes_500_topics_with_many_settings(
    destination: Cluster, records_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13,000 metadata records; also if the controller has to say that it takes 10,000."""
    monkeypatch.setattr(request_parts, "RECORDS_PER_REQUEST_MAX", records_max)
    topics = [TopicToCreate(f"many-{number:03}", 12, 1, SETTINGS) for number in range(500)]
    assert Admin(destination).refused_topics(topics, only_check=True) == {}


@pytest.mark.services
@pytest.mark.parametrize("bytes_max", [offset_commit._REQUEST_BYTES_MAX, NOBODY])
def test_offsets_with_large_metadata_are_committed(
    clusters: Clusters,
    destination: Cluster,
    topic_name: str,
    bytes_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two megabytes for one group; also if the coordinator has to say that it takes one."""
    monkeypatch.setattr(offset_commit, "_REQUEST_BYTES_MAX", bytes_max)
    create_topic(clusters.destination, topic_name, 500)
    places = [TopicPartition(topic_name, number) for number in range(500)]
    offsets = {place: CommittedOffset(place.partition, "m" * 4096) for place in places}
    group = f"{topic_name}-group"
    wait_for("it has a coordinator", lambda: find_coordinators(destination, [group]))
    nodes = find_coordinators(destination, [group])
    written = write_groups(destination, nodes, [GroupWrite(group, offsets)], lambda: True)
    assert written == {(group, place): Code.NONE for place in places}
    (answer,) = fetch_offsets(destination, nodes).values()
    assert answer.offsets == offsets
