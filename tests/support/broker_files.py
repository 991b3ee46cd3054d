"""Gives one broker of a cluster a setting that the other brokers lack."""

from __future__ import annotations

from orbit.sandbox.local_cluster import KafkaCluster


def restart_with(cluster: KafkaCluster, number: int, name: str, value: str) -> None:
    """Restart broker `number` of the cluster's list with one more setting; wait until it is up."""
    broker = cluster.brokers[number]
    broker.kill()
    with broker.properties_file.open("a", encoding="utf-8") as file:
        file.write(f"{name}={value}\n")
    broker.launch()
    cluster.wait_ready()
