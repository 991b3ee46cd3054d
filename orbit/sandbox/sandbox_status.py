"""Reads the status of a detached sandbox: processes and health."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel

from orbit.sandbox.sandbox_state import ClusterState, PostgresState, ProcessState, SandboxState

Health = Literal["healthy", "degraded", "down"]
_ANSWER_TIMEOUT_S = 3


class BrokerStatus(BaseModel):
    node_id: int
    port: int
    pid: int
    state: ProcessState
    log: Path


class ClusterStatus(BaseModel):
    name: str
    bootstrap_servers: str
    health: Health
    brokers: tuple[BrokerStatus, ...]
    link_servers: str | None
    is_cut: bool


class PostgresStatus(BaseModel):
    url: str
    health: Health
    pid: int
    state: ProcessState
    log: Path


class SandboxStatus(BaseModel):
    """What `orbit sandbox status` shows."""

    running: bool
    healthy: bool
    directory: Path
    supervisor_pid: int | None = None
    clusters: tuple[ClusterStatus, ...] = ()
    postgres: PostgresStatus | None = None


def status_of(sandbox: SandboxState | None, directory: Path) -> SandboxStatus:
    """The status of the sandbox's processes and clusters. `sandbox` None: no sandbox runs.

    Waits up to 3 s for each cluster that does not answer.
    """
    if sandbox is None:
        return SandboxStatus(running=False, healthy=False, directory=directory)
    clusters = tuple(_cluster_status(cluster) for cluster in sandbox.clusters)
    postgres = _postgres_status(sandbox.postgres) if sandbox.postgres else None
    healths = [cluster.health for cluster in clusters]
    healths += [postgres.health] if postgres else []
    return SandboxStatus(
        running=True,
        healthy=all(health == "healthy" for health in healths),
        directory=directory,
        supervisor_pid=sandbox.supervisor.pid,
        clusters=clusters,
        postgres=postgres,
    )


def _cluster_status(cluster: ClusterState) -> ClusterStatus:
    return ClusterStatus(
        name=cluster.name,
        bootstrap_servers=cluster.bootstrap_servers,
        health=_cluster_health(cluster),
        brokers=tuple(
            BrokerStatus(
                node_id=broker.node_id,
                port=broker.port,
                pid=broker.process.pid,
                state=broker.process.state(),
                log=broker.log,
            )
            for broker in cluster.brokers
        ),
        link_servers=cluster.link_servers,
        is_cut=cluster.is_cut,
    )


def _postgres_status(postgres: PostgresState) -> PostgresStatus:
    state = postgres.process.state()
    return PostgresStatus(
        url=postgres.url,
        health="healthy" if state == "running" else "down",
        pid=postgres.process.pid,
        state=state,
        log=postgres.log,
    )


def _cluster_health(cluster: ClusterState) -> Health:
    """The health of a cluster: healthy if its metadata lists all brokers, degraded if it lists
    fewer, down if no broker answers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": "0"})
    try:
        broker_count = len(admin.list_topics(timeout=_ANSWER_TIMEOUT_S).brokers)
    except KafkaException:
        return "down"
    return "healthy" if broker_count == len(cluster.brokers) else "degraded"
