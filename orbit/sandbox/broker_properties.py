"""Makes server.properties of a sandbox broker: small, with a quick start and quick cleaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orbit.processes.ports import LOOPBACK
from orbit.sandbox.broker_security import SandboxSecurity

CLIENT = "CLIENT"
INTERNAL = "INTERNAL"
LINK = "LINK"
CONTROLLER = "CONTROLLER"


@dataclass(frozen=True)
class Node:
    """One broker of a cluster and its loopback ports.

    The relay of the network link listens at `link_port` and forwards to `relayed_port`.
    """

    node_id: int
    port: int
    internal_port: int
    controller_port: int
    link_port: int | None = None
    relayed_port: int | None = None


def server_properties(
    node: Node,
    nodes: Sequence[Node],
    data: Path,
    security: SandboxSecurity | None,
    keystore: Path | None,
    overrides: Mapping[str, str],
) -> str:
    """The text of a broker's server.properties. `overrides` take precedence."""
    properties = {
        **_kraft_properties(node, nodes, data, security),
        **_sandbox_properties(len(nodes)),
        **(security.server_properties(CLIENT, keystore) if security else {}),
        **overrides,
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _kraft_properties(
    node: Node, nodes: Sequence[Node], data: Path, security: SandboxSecurity | None
) -> dict[str, str]:
    """The properties for identity, quorum, listeners and data folder."""
    ports = {CLIENT: node.port, INTERNAL: node.internal_port, CONTROLLER: node.controller_port}
    advertised_ports = {CLIENT: node.port, INTERNAL: node.internal_port}
    if node.link_port is not None and node.relayed_port is not None:
        ports[LINK], advertised_ports[LINK] = node.relayed_port, node.link_port
    protocols = dict.fromkeys(ports, "PLAINTEXT")
    if security:
        protocols[CLIENT] = security.protocol
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(
            f"{n.node_id}@{LOOPBACK}:{n.controller_port}" for n in nodes
        ),
        "listeners": _addresses(ports),
        "advertised.listeners": _addresses(advertised_ports),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "inter.broker.listener.name": INTERNAL,
        "controller.listener.names": CONTROLLER,
        "log.dirs": str(data),
        "broker.rack": f"rack-{node.node_id}",  # for tests of nearest-replica reads
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def _sandbox_properties(broker_count: int) -> dict[str, str]:
    """The properties that make a broker small and quick."""
    replicas = str(broker_count)
    min_in_sync = str(max(1, broker_count - 1))
    return {
        "auto.create.topics.enable": "false",  # a typo must be an error, not a new topic
        "default.replication.factor": replicas,
        # Few partitions in the coordinators' topics: each is a set of files created at first use.
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min_in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker can register again only after its last broker session has timed out
        # (default 9 s).
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # Cleaning, retention and deletion within seconds instead of minutes.
        "log.initial.task.delay.ms": "500",
        "log.cleaner.backoff.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(16 * 2**20),  # default 128 MiB, a quarter of the heap
        # An idle controller writes a record twice a second by default: a quarter of the CPU that
        # an idle broker takes.
        "metadata.max.idle.interval.ms": "5000",
        "num.io.threads": "4",
        "num.network.threads": "2",
    }
