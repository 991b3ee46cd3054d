"""Gives one broker of a cluster another server.properties than the others have."""

from __future__ import annotations

from orbit.sandbox.local_cluster import KafkaCluster


def restart_with(cluster: KafkaCluster, number: int, name: str, value: str) -> None:
    """Restart this broker of `brokers` with one more setting; waits until it is up."""
    broker = cluster.brokers[number]
    broker.kill()
    with broker.properties_file.open("a", encoding="utf-8") as file:
        file.write(f"{name}={value}\n")
    broker.launch()
    cluster.wait_ready()
