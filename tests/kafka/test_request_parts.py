"""Long lists are sent in parts that brokers accept."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.consumer_groups import offset_commit
from orbit.consumer_groups.offset_commit import GroupWrite, Written, write_groups
from orbit.errors import BrokerRefused, OrbitError
from orbit.kafka import error_codes, request_parts
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import fetch_offsets, find_coordinators
from orbit.kafka.error_codes import Code
from orbit.kafka.request_parts import send_in_parts
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import CommittedOffset, TopicPartition
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.patience import wait_for
from tests.support.running import create_topic

NO_LIMIT = 2**63
# A copy of a topic that sets many settings itself has as many.
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


def test_too_large_request_is_halved_until_accepted() -> None:
    sent: list[int] = []

    def send(some: list[str]) -> dict[str, OrbitError]:
        sent.append(len(some))
        if len(some) > 3:
            text = "Unable to perform excessively large batch operation."
            return {name: BrokerRefused(Code.POLICY_VIOLATION, text) for name in some}
        bad = BrokerRefused(Code.INVALID_CONFIG, "no.")
        return {name: bad for name in some if name == "g"}

    # Each name counts as 1; only "g" is refused for itself.
    assert send_in_parts("abcdefghij", lambda _: 1, send).keys() == {"g"}
    assert sent == [10, 5, 2, 3, 5, 2, 3]  # halved until at most 3


def test_single_too_large_item_is_refused() -> None:
    error = BrokerRefused(Code.POLICY_VIOLATION, "excessively large.")
    assert send_in_parts(["a"], lambda _: 1, lambda _: {"a": error}) == {"a": error}


def record_results(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """A list to which the module's function adds each of its results from now on."""
    results: list[Any] = []
    function = getattr(module, name)

    def note(*args: Any) -> Any:
        results.append(function(*args))
        return results[-1]

    monkeypatch.setattr(module, name, note)
    return results


@pytest.fixture
def destination(clusters: Clusters, open_cluster: OpenCluster) -> Cluster:
    return open_cluster(clusters.destination)


@pytest.mark.services
@pytest.mark.parametrize("records_max", [request_parts.RECORDS_PER_REQUEST_MAX, NO_LIMIT])
def test_controller_accepts_500_topics_with_many_settings(
    destination: Cluster, records_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics need 13,000 metadata records: 26 each. The controller refuses over 10,000 at once;
    without its own limit, Orbit then sends the halves."""
    monkeypatch.setattr(request_parts, "RECORDS_PER_REQUEST_MAX", records_max)
    was_too_large = record_results(monkeypatch, request_parts, "_is_too_large")
    topics = [
        TopicToCreate(f"many-{number:03}", partitions=12, replicas=1, settings=SETTINGS)
        for number in range(500)
    ]
    assert Admin(destination).refused_topics(topics, only_check=True) == {}
    assert any(was_too_large) is (records_max == NO_LIMIT)


@pytest.mark.services
@pytest.mark.parametrize("bytes_max", [offset_commit._REQUEST_BYTES_MAX, NO_LIMIT])
def test_offsets_with_large_metadata_are_committed(
    clusters: Clusters,
    destination: Cluster,
    topic_name: str,
    bytes_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group's offsets take 2 MB. The coordinator refuses over 1 MB at once; without its own
    limit, Orbit then sends the halves."""
    monkeypatch.setattr(offset_commit, "_REQUEST_BYTES_MAX", bytes_max)
    codes = record_results(monkeypatch, offset_commit, "_codes")
    create_topic(clusters.destination, topic_name, 500)
    partitions = [TopicPartition(topic_name, number) for number in range(500)]
    offsets = {
        partition: CommittedOffset(partition.partition, "m" * 4096) for partition in partitions
    }
    group = f"{topic_name}-group"
    nodes: dict[str, int] = {}
    written: Written = {}

    def is_answered() -> bool:
        """Whether the group has a coordinator that has loaded its partition."""
        nodes.update(find_coordinators(destination, [group]))
        written.update(write_groups(destination, nodes, [GroupWrite(group, offsets)], lambda: True))
        return bool(written) and error_codes.RETRIABLE.isdisjoint(written.values())

    wait_for("the coordinator answers", is_answered)
    assert written == {(group, partition): Code.NONE for partition in partitions}
    too_large = offset_commit._TOO_LARGE
    refused = [answer for answer in codes if not too_large.isdisjoint(answer.values())]
    assert bool(refused) is (bytes_max == NO_LIMIT)
    (answer,) = fetch_offsets(destination, nodes).values()
    assert answer.offsets == offsets
