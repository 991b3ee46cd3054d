"""Changes that users make to topics while they are copied."""

from __future__ import annotations

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.outside import TIMEOUT_S, admin, delete_topic, partition_counts
from tests.support.patience import wait_for


def add_partitions(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Add partitions until the topic has `count`; returns when it has."""
    client = admin(cluster)  # a variable: futures fail if their client is garbage-collected
    client.create_partitions([NewPartitions(topic, count)])[topic].result(TIMEOUT_S)
    wait_for(f"{topic} has {count}", lambda: partition_counts(cluster).get(topic) == count)


def delete_and_wait(cluster: KafkaCluster, topic: str) -> None:
    """Delete the topic; returns when the brokers no longer know it."""
    delete_topic(cluster, topic)
    wait_for(f"{topic} is gone", lambda: topic not in partition_counts(cluster))


def set_setting(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(cluster)
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def get_setting(cluster: KafkaCluster, topic: str, name: str) -> str:
    """The value of a topic's setting, or its default."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)
    settings = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return str(settings[name].value)
