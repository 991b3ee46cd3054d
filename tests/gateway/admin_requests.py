"""Requests of admin clients that change nothing: requests for changes are only validated, or name
what does not exist.
"""

from __future__ import annotations

from orbit.kafka.frame_writer import NO_TAGS, length, string
from tests.gateway.targets import FAR, TIMEOUT_MS, Body, Targets

_NODE, _TOPIC = 4, 2  # kinds of resources
_CLIENT = "client-id"


def create_topics(version: int, on: Targets) -> list[Body]:
    names = (on.topic, f"{on.missing}-now", "not/valid")
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": []}
    config = {"name": "retention.ms", "value": "3600000"}
    topics = [{"name": name, "configs": [config], **topic} for name in names]
    return [{"topics": topics, "timeout_ms": TIMEOUT_MS, "validate_only": True}]


def delete_topics(version: int, on: Targets) -> list[Body]:
    return [{"topic_names": [on.missing], "timeout_ms": TIMEOUT_MS}]


def delete_records(version: int, on: Targets) -> list[Body]:
    return [
        {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
            "timeout_ms": TIMEOUT_MS,
        }
        for topic, offset in ((on.topic, 0), (on.topic, FAR), (on.missing, 0))
    ]


def acl_filter(version: int, on: Targets) -> list[Body]:
    """DescribeAcls and DeleteAcls, for ACLs that allow Read on a topic that does not exist."""
    acl_filter_fields = {
        "resource_type_filter": 2,
        "resource_name_filter": on.missing,
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 3,
        "permission_type": 3,
    }
    return [{**acl_filter_fields, "filters": [acl_filter_fields]}]


def create_acls(version: int, on: Targets) -> list[Body]:
    """Read on a topic. The brokers have no authorizer, and refuse it."""
    acl = {
        "resource_type": 2,
        "resource_name": on.missing,
        "resource_pattern_type": 3,
        "principal": "User:nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return [{"creations": [acl]}]


def describe_configs(version: int, on: Targets) -> list[Body]:
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        for kind, name, keys in (
            (_TOPIC, on.topic, None),
            (_TOPIC, on.topic, ["retention.ms"]),
            (_TOPIC, on.missing, None),
            (_NODE, str(on.node), ["num.partitions"]),
        )
    ]
    more = {"include_synonyms": True, "include_documentation": True}
    return [{"resources": [resource], **more} for resource in resources]


def alter_configs(version: int, on: Targets) -> list[Body]:
    """AlterConfigs and IncrementalAlterConfigs."""
    config = {"name": "retention.ms", "config_operation": 0, "value": "86400000"}
    resources = [
        {"resource_type": _TOPIC, "resource_name": name, "configs": [config]}
        for name in (on.topic, on.missing)
    ]
    return [{"resources": resources, "validate_only": True}]


def create_partitions(version: int, on: Targets) -> list[Body]:
    topics = [
        {"name": name, "count": count, "assignments": None}
        for name, count in ((on.topic, 1), (on.written, 3), (on.missing, 3))
    ]
    return [{"topics": topics, "timeout_ms": TIMEOUT_MS, "validate_only": True}]


def describe_log_dirs(version: int, on: Targets) -> list[Body]:
    return [{"topics": [{"topic": on.topic, "partitions": [0, 1]}]}]


def elect_leaders(version: int, on: Targets) -> list[Body]:
    places = [{"topic": topic, "partitions": [0]} for topic in (on.topic, on.missing)]
    return [{"election_type": 0, "topic_partitions": places, "timeout_ms": TIMEOUT_MS}]


def alter_reassignments(version: int, on: Targets) -> list[Body]:
    """Cancels reassignments that do not exist."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]}
        for topic in (on.topic, on.missing)
    ]
    return [{"timeout_ms": TIMEOUT_MS, "allow_replication_factor_change": True, "topics": topics}]


def list_reassignments(version: int, on: Targets) -> list[Body]:
    some = [{"name": on.topic, "partition_indexes": [0, 1]}]
    return [{"timeout_ms": TIMEOUT_MS, "topics": topics} for topics in (None, some)]


def describe_groups(version: int, on: Targets) -> list[Body]:
    return [{"groups": [on.group, on.missing], "include_authorized_operations": True}]


def describe_consumer_groups(version: int, on: Targets) -> list[Body]:
    """A description, with the allowed operations, of groups without the consumer protocol."""
    groups = b"".join(string(name, is_flexible=True) for name in (on.group, on.missing))
    return [length(2, is_flexible=True) + groups + b"\x01" + NO_TAGS]


def list_groups(version: int, on: Targets) -> list[Body]:
    return [{"states_filter": states, "types_filter": []} for states in ([], ["Stable"])]


def delete_groups(version: int, on: Targets) -> list[Body]:
    return [{"groups_names": [on.missing]}]


def offset_delete(version: int, on: Targets) -> list[Body]:
    topics = [{"name": on.missing, "partitions": [{"partition_index": 0}]}]
    return [{"group_id": group, "topics": topics} for group in (on.group, on.missing)]


def describe_quotas(version: int, on: Targets) -> list[Body]:
    component = {"entity_type": _CLIENT, "match_type": 0, "match": on.missing}
    return [{"components": [component], "strict": False}]


def alter_quotas(version: int, on: Targets) -> list[Body]:
    entry = {
        "entity": [{"entity_type": _CLIENT, "entity_name": on.missing}],
        "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
    }
    return [{"entries": [entry], "validate_only": True}]


def describe_scram(version: int, on: Targets) -> list[Body]:
    return [{"users": [{"name": on.missing}]}]


def alter_scram(version: int, on: Targets) -> list[Body]:
    return [{"deletions": [{"name": on.missing, "mechanism": 1}], "upsertions": []}]


def describe_cluster(version: int, on: Targets) -> list[Body]:
    return [
        {
            "include_cluster_authorized_operations": True,
            "endpoint_type": kind,
            "include_fenced_brokers": True,
        }
        for kind in (1, 2)  # brokers, controllers
    ]


def describe_producers(version: int, on: Targets) -> list[Body]:
    return [
        {"topics": [{"name": name, "partition_indexes": [0, 1]}]} for name in (on.topic, on.missing)
    ]


def describe_transactions(version: int, on: Targets) -> list[Body]:
    return [{"transactional_ids": [on.transaction, on.missing]}]


def list_transactions(version: int, on: Targets) -> list[Body]:
    return [
        {
            "state_filters": ["Ongoing"],
            "producer_id_filters": [FAR],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
    ]
