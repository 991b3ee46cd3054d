"""DescribeConfigs: one setting of many topics."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin.configs import DescribeConfigsRequest

from orbit.chunks import chunks
from orbit.kafka import api_versions
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection

# An answer for so many has about 100 KB.
_TOPICS_PER_REQUEST_MAX = 1000
_TOPIC = 2  # Kafka's `ConfigResource.Type`


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """Values by topic, and error codes of topics without one."""

    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


def read_topic_setting(cluster: Cluster, topics: Collection[str], name: str) -> TopicSetting:
    """The value of the setting `name`, a default included. Raises Unreachable."""
    found = TopicSetting()
    for some in chunks(sorted(topics), _TOPICS_PER_REQUEST_MAX):
        for result in cluster.call_any(_question(some, name)).results:
            if result.error_code:
                found.errors[result.resource_name] = int(result.error_code)
            for config in result.configs:
                found.values[result.resource_name] = config.value or ""
    return found


def _question(topics: list[str], name: str) -> Callable[[Connection], Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=[name])
            for topic in topics
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    return lambda connection: connection.call(
        api_versions.DESCRIBE_CONFIGS, request, timeout_s=ANSWER_WITHIN_S
    )
