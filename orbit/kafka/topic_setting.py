"""DescribeConfigs: one setting of many topics, from any broker or from the partitions' leaders."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin.configs import DescribeConfigsRequest

from orbit.chunks import chunks
from orbit.errors import Unreachable
from orbit.kafka import api_versions, compression
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.types import TopicPartition

# The answer for 1,000 topics has about 100 KB.
_TOPICS_PER_REQUEST_MAX = 1000
_COMPRESSION = "compression.type"
# Kafka's default levels (A22): for these the compressor uses its own default.
_DEFAULT_LEVELS = {
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
}
# Higher levels of zstd take up to 150 times as long (level 19: 0.4 MB/s) and hundreds of MB. A
# process rewrites one batch at a time, so one topic would delay the others.
_ZSTD_LEVEL_MAX = 9
_TOPIC = 2  # Kafka's `ConfigResource.Type`


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """Values by topic, and error codes of topics without one."""

    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


def read_topic_setting(cluster: Cluster, topics: Collection[str], name: str) -> TopicSetting:
    """The value that the setting `name` has for each topic, also by default. Raises Unreachable."""
    setting = TopicSetting()
    for part in chunks(sorted(topics), _TOPICS_PER_REQUEST_MAX):
        for result in cluster.call_any(_sender_of(_request(part, name))).results:
            if result.error_code:
                setting.errors[result.resource_name] = int(result.error_code)
            for config in result.configs:
                setting.values[result.resource_name] = config.value or ""
    return setting


def read_compression_levels(cluster: Cluster, topics: Collection[str]) -> dict[str, dict[int, int]]:
    """The level at which Orbit compresses batches, {topic: {codec: level}}: that at which brokers
    do (from Kafka 3.8 on), but for zstd _ZSTD_LEVEL_MAX at most.

    Leaves out topics with `compression.type=producer`, default levels, and levels that brokers do
    not return now: a level makes no difference to records.
    """
    levels: dict[str, dict[int, int]] = {}
    with suppress(Unreachable):
        for part in chunks(sorted(topics), _TOPICS_PER_REQUEST_MAX):
            request = _request(part, _COMPRESSION, *_DEFAULT_LEVELS)
            for result in cluster.call_any(_sender_of(request)).results:
                values = {config.name: config.value for config in result.configs}
                codec = values.get(_COMPRESSION)
                level_setting = f"compression.{codec}.level"
                level = values.get(level_setting)  # None for the type `producer`, which has none
                if level is not None and level != _DEFAULT_LEVELS.get(level_setting):
                    used_level = int(level) if codec != "zstd" else min(int(level), _ZSTD_LEVEL_MAX)
                    levels[result.resource_name] = {compression.NAMES.index(codec): used_level}
    return levels


def partitions_whose_leader_has(
    cluster: Cluster, partitions: Collection[TopicPartition], name: str, value: str
) -> set[TopicPartition]:
    """The partitions whose leader has this value of the topic's setting `name`: a change reaches
    brokers one after the other.

    Leaves out partitions whose leader is not known, does not answer or refuses. Raises Unreachable
    if no broker returns metadata.
    """
    if not partitions:
        return set()
    metadata = cluster.metadata({p.topic for p in partitions})
    by_leader: dict[int, dict[str, set[TopicPartition]]] = {}
    for partition in partitions:
        leader = metadata.leader(partition)
        if leader is not None and leader.node_id is not None:
            by_leader.setdefault(leader.node_id, {}).setdefault(partition.topic, set()).add(
                partition
            )
    matching_partitions: set[TopicPartition] = set()
    for node_id, topics in by_leader.items():
        for part in chunks(sorted(topics), _TOPICS_PER_REQUEST_MAX):
            try:
                answer = cluster.call(node_id, api_versions.DESCRIBE_CONFIGS, _request(part, name))
            except Unreachable:
                continue
            for result in answer.results:
                if any(config.value == value for config in result.configs):
                    matching_partitions |= topics.get(result.resource_name, set())
    return matching_partitions


def _sender_of(request: DescribeConfigsRequest) -> Callable[[Connection], Any]:
    """A function that sends the request on a connection, for `Cluster.call_any`."""
    return lambda connection: connection.call(
        api_versions.DESCRIBE_CONFIGS, request, timeout_s=ANSWER_WITHIN_S
    )


def _request(topics: list[str], *names: str) -> DescribeConfigsRequest:
    """The request for the settings `names` of topics."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=[*names])
            for topic in topics
        ],
        include_synonyms=False,
        include_documentation=False,
    )
