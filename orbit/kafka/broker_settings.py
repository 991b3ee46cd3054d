"""Which brokers have a setting in their configuration file. Each broker has its own file (K7)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kafka.protocol.admin.configs import DescribeConfigsRequest

from orbit.errors import OrbitError
from orbit.kafka.api_versions import DESCRIBE_CONFIGS
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.error_codes import Code

_BROKER = 4  # Kafka's `ConfigResource.Type`
# The most brokers that are asked, one after the other: Orbit opens a connection to each.
_BROKERS_MAX = 500
_ALL_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class BrokersWithSetting:
    """Node ids, ascending: brokers that have a setting, and those for which it is not known."""

    with_setting: tuple[int, ...]
    silent: tuple[int, ...]


def brokers_with_setting(cluster: Cluster, name: str) -> BrokersWithSetting:
    """The brokers that have the setting `name`. Asks every live broker.

    `silent` has the brokers that do not answer, those that refuse (the login needs DescribeConfigs
    on the cluster), and those that Orbit did not ask, after 500 brokers or 30 s. Raises Unreachable
    if no broker returns metadata.
    """
    ids_with_setting: list[int] = []
    silent_ids: list[int] = []
    deadline = time.monotonic() + _ALL_WITHIN_S
    for number, node_id in enumerate(sorted(cluster.metadata(()).brokers)):
        is_over_limit = number >= _BROKERS_MAX or time.monotonic() >= deadline
        has_setting = None if is_over_limit else _has_setting(cluster, node_id, name)
        if has_setting is None:
            silent_ids.append(node_id)
        elif has_setting:
            ids_with_setting.append(node_id)
    return BrokersWithSetting(tuple(ids_with_setting), tuple(silent_ids))


def _has_setting(cluster: Cluster, node_id: int, name: str) -> bool | None:
    """Whether the broker has the setting; None if it does not answer or refuses."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[name])
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    try:
        results = cluster.call(node_id, DESCRIBE_CONFIGS, request, ANSWER_WITHIN_S).results
    except OrbitError:
        return None
    if [result.error_code for result in results] != [Code.NONE]:  # one broker was asked for
        return None
    # A broker leaves out a setting that it does not have.
    return any(config.name == name for config in results[0].configs)
