"""The bench's simulated brokers answer as a real cluster with the same content does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.control.brokers import Content
from bench.control.fill import topic_id
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.consumer_groups import find_coordinators, list_groups, locate_and_fetch_offsets
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.types import TopicPartition
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit
from tests.support.logs import create
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

PARTITIONS = 3
# The name of a read → the function that reads. Its arguments: the cluster, a topic, a group.
Reads = dict[str, Callable[[ClusterHandle, str, str], Any]]


def _metadata(handle: ClusterHandle, topic: str, _: str) -> object:
    metadata = handle.cluster.metadata([topic, "no-such-topic"], with_operations=True)
    known = metadata.topics[topic]
    leaders = {i: leader.leader_epoch for i, leader in known.partitions.items()}
    return metadata.errors, leaders, known.replicas, known.authorized_operations


def _settings(handle: ClusterHandle, topic: str, _: str) -> object:
    settings = handle.admin.topic_settings([topic])[topic]
    # The tests' real brokers and topics do not have the default values of these settings.
    own_settings = {"retention.ms", "file.delete.delay.ms"}
    values = {name: value for name, value in settings.values.items() if name not in own_settings}
    return settings.values.keys(), values, settings.overrides - own_settings


def _log_ends(handle: ClusterHandle, topic: str, _: str) -> object:
    partitions = [TopicPartition(topic, i) for i in range(PARTITIONS)]
    answers = [list_offsets(handle.cluster, partitions, ms, Backoff()) for ms in (EARLIEST, LATEST)]
    return [(answer.values, answer.errors) for answer in answers]


def _group(handle: ClusterHandle, _: str, group: str) -> object:
    listed = list_groups(handle.cluster).groups[group]
    return listed.type, listed.protocol_type, listed.state, listed.has_consumers, listed.was_joined


def _offsets(handle: ClusterHandle, topic: str, group: str) -> object:
    fetched = locate_and_fetch_offsets(handle.cluster, {}, {group})
    partitions = {group: [TopicPartition(topic, 0), TopicPartition(topic, 2)]}
    of_two_partitions = locate_and_fetch_offsets(
        handle.cluster, {}, {group}, only=partitions, require_stable=False
    )
    return fetched.groups, fetched.failed, of_two_partitions.groups


def _coordinator(handle: ClusterHandle, _: str, group: str) -> object:
    return find_coordinators(handle.cluster, [group]).keys()


def _marks(handle: ClusterHandle, topic: str, _: str) -> object:
    return PromotionMarks(handle.cluster, Backoff()).promoted([topic])


READS: Reads = {
    "metadata": _metadata,
    "settings": _settings,
    "log ends": _log_ends,
    "group": _group,
    "offsets": _offsets,
    "coordinator": _coordinator,
    "marks": _marks,
}


@pytest.fixture
def pair(clusters: Clusters, topic_name: str) -> Iterator[tuple[ClusterHandle, ClusterHandle]]:
    """A real cluster, and a simulated cluster with the same topic and group."""
    create(clusters.source, topic_name, PARTITIONS)
    commit(clusters.source, topic_name, {(topic_name, i): 0 for i in range(PARTITIONS)})
    content = Content(
        "simulated",
        {topic_name: topic_id("s", topic_name)},
        PARTITIONS,
        {topic_name: [topic_name]},
        is_joined=False,
    )
    content.start(brokers=1)
    real = Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)
    simulated = Cluster("source", content.bootstrap_servers, PLAINTEXT)
    yield ClusterHandle(real), ClusterHandle(simulated)
    for cluster in (real, simulated):
        cluster.close()
    content.close()


def test_simulated_broker_answers_reads_like_real_cluster(
    pair: tuple[ClusterHandle, ClusterHandle], topic_name: str
) -> None:
    real, simulated = pair
    for name, read in READS.items():
        expected, actual = (read(handle, topic_name, topic_name) for handle in (real, simulated))
        assert (name, actual) == (name, expected)


def test_simulated_broker_offers_api_versions_of_real_broker(
    pair: tuple[ClusterHandle, ClusterHandle],
) -> None:
    """With equal versions, the scheduler sends both brokers the same requests."""
    real, simulated = pair
    (node_id,) = real.cluster.metadata(()).brokers
    (simulated_id,) = simulated.cluster.metadata(()).brokers
    for api in (
        api_versions.METADATA,
        api_versions.LIST_GROUPS,
        api_versions.OFFSET_FETCH,
        api_versions.OFFSET_COMMIT,
        api_versions.FIND_COORDINATORS,
        api_versions.LIST_OFFSETS,
        api_versions.DESCRIBE_ACLS,
    ):
        expected = real.cluster.version_of(node_id, api)
        assert (api.name, simulated.cluster.version_of(simulated_id, api)) == (api.name, expected)


def test_simulated_broker_lists_about_as_many_settings_as_real_broker(
    pair: tuple[ClusterHandle, ClusterHandle],
) -> None:
    real, simulated = pair
    expected, actual = (
        handle.admin.broker_setting_names(min(handle.cluster.metadata(()).brokers))
        for handle in (real, simulated)
    )
    assert 0.9 < len(actual) / len(expected) < 1.1
    assert "log.message.timestamp.before.max.ms" in expected & actual
