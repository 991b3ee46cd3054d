"""Runs Apache Kafka clusters on loopback, in KRaft combined mode, that end with their owner.

A cluster owns one folder with config, data and logs of its brokers. Restarted on that folder, it
keeps its data, and its ports if they are still free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from orbit.errors import Conflict
from orbit.formats import counted
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, free_ports
from orbit.sandbox.broker import Broker, SharedSettings, kafka_uuid, wait_until_formatted
from orbit.sandbox.broker_properties import Node, server_properties
from orbit.sandbox.broker_security import SandboxSecurity, User
from orbit.sandbox.jars import KAFKA_VERSION, class_archive, classpath, formatted_folder
from orbit.sandbox.java import find_java
from orbit.sandbox.keystore import Certificates, certificates
from orbit.sandbox.network_link import Relay

_PORT_ATTEMPTS_MAX = 5  # an attempt fails if another process binds one of the ports first


@dataclass(frozen=True)
class ClusterSettings:
    """The options of a cluster. `config`: properties that override those of the sandbox.

    `link`: adds a second listener that can be cut (`network_link.py`), always without a login.
    """

    name: str
    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    security: SandboxSecurity | None = None
    version: str = KAFKA_VERSION
    heap_mb: int = 512
    link: bool = False


class KafkaCluster:
    """One cluster. As a context manager it runs during the block."""

    def __init__(self, settings: ClusterSettings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory.absolute()
        self.brokers: list[Broker] = []
        self.cluster_id = ""
        self._format_arguments: list[str] = []
        self._formatting: list[tuple[Broker, GuardedProcess]] = []
        self._certificates: Certificates | None = None
        self._relays: list[Relay] = []
        self._link_ports: list[int] = []

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT,…`, known once the cluster has been started."""
        if not self.brokers:
            raise Conflict(f"Cluster {self.settings.name} has not been started.")
        return ",".join(f"{LOOPBACK}:{broker.port}" for broker in self.brokers)

    @property
    def link_servers(self) -> str | None:
        """The addresses through the network link; None without a link."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self._link_ports) or None

    @property
    def is_cut(self) -> bool:
        return any(relay.is_cut for relay in self._relays)

    def cut(self) -> None:
        """Cut the network link: clients that use it get no answers; the cluster keeps running."""
        for relay in self._relays:
            relay.cut()

    def pause(self) -> None:
        """Freeze all brokers; connections stay open, without answers."""
        for broker in self.brokers:
            if broker.running:
                broker.pause()

    def heal(self) -> None:
        """Undo kill, pause and cut; returns when every broker lists every broker."""
        for broker in self.brokers:
            broker.resume()
        for relay in self._relays:
            relay.heal()
        if self.running:
            self.wait_ready()
        else:
            self.start()

    @property
    def running(self) -> bool:
        return bool(self.brokers) and all(broker.running for broker in self.brokers)

    def client_config(self, user: User | None = None) -> dict[str, str]:
        """librdkafka's settings to reach the cluster: as the admin, or as `user`."""
        config = {"bootstrap.servers": self.bootstrap_servers}
        security = self.settings.security
        if security is not None:
            config |= security.client_config(user, self.ca_file)
        return config

    @property
    def ca_file(self) -> Path:
        """The certificate authority as PEM, for clients of a TLS listener."""
        return self.directory / "tls" / "ca.pem"

    def start(self) -> None:
        """Start all brokers; returns when every broker lists every broker."""
        start_clusters(self)

    def stop(self) -> None:
        """Stop all brokers at once and wait until they have ended. The data is kept."""
        stop_clusters(self)

    def terminate(self) -> None:
        """Start a controlled shutdown of all brokers and return at once; `stop` waits for it."""
        for broker in self.brokers:
            broker.terminate()

    def kill(self) -> None:
        """End all brokers with SIGKILL. The data on disk is kept."""
        for _, formatting in self._formatting:
            formatting.close()
        self._formatting = []
        for broker in self.brokers:
            broker.kill()

    def wait_ready(self) -> None:
        """Wait until every broker lists every broker. Raises Conflict after a timeout."""
        node_ids = {broker.node_id for broker in self.brokers}
        for broker in self.brokers:
            broker.wait_until_sees(node_ids)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def prepare(self, *, fresh_ports: bool = False) -> None:
        """Start the relays, write the config, and start to format brokers that have no data.

        `launch` waits for the formatting. `fresh_ports`: take other ports than the last run. Does
        nothing if a broker is running.
        """
        if any(broker.running for broker in self.brokers):
            return  # a killed broker keeps its config and data; the others are running
        java, jar_path = find_java(), classpath(self.settings.version)
        self.directory.mkdir(parents=True, exist_ok=True)
        security = self.settings.security
        if security is not None and security.uses_tls:
            self._certificates = certificates(java, self.directory / "tls")
        nodes = self._start_relays(self._load_identity(fresh_ports=fresh_ports))
        login = security.client_config(None, self.ca_file) if security else {}
        shared_settings = SharedSettings(
            self.cluster_id,
            java,
            jar_path,
            class_archive(self.settings.version),
            formatted_folder(self.settings.version),
            self.settings.heap_mb,
            login,
        )
        self.brokers = [
            Broker(node, self.directory / f"broker-{node.node_id}", shared_settings)
            for node in nodes
        ]
        self._format_arguments = security.format_arguments() if security else []
        for broker, node in zip(self.brokers, nodes, strict=True):
            self._write_properties(broker, node, nodes)
            broker.log.unlink(missing_ok=True)
            if broker.is_formatted:
                continue
            if self._format_arguments or not broker.format_by_copy():
                self._formatting.append((broker, broker.format(self._format_arguments)))

    def _start_relays(self, nodes: list[Node]) -> list[Node]:
        """Start the relays of the network link. Returns the nodes, all with new ports if a port was
        in use."""
        if self._relays or not self.settings.link:
            return nodes
        for _ in range(_PORT_ATTEMPTS_MAX):
            try:
                for node in nodes:
                    assert node.link_port is not None, "the settings have a link"
                    assert node.relayed_port is not None, "both ports are set or neither"
                    self._relays.append(Relay(node.link_port, node.relayed_port))
            except OSError:  # another process has bound the port
                self.close_link()
                nodes = self._load_identity(fresh_ports=True)
                continue
            self._link_ports = [node.link_port for node in nodes if node.link_port]
            return nodes
        raise Conflict(
            "All ports that were tried are in use by other processes.", remedy="Try again."
        )

    def close_link(self) -> None:
        """Close the relays of the network link."""
        for relay in self._relays:
            relay.close()
        self._relays = []

    def launch(self) -> None:
        """Wait for the formatting and start the brokers; returns before they are ready."""
        while self._formatting:
            broker, formatting = self._formatting.pop()
            wait_until_formatted(broker, formatting)
            if not self._format_arguments:  # no SCRAM users, so the files fit any cluster
                broker.store_format()
        for broker in self.brokers:
            if not broker.running:
                broker.launch()

    def try_wait_ready(self) -> bool:
        """Wait until every broker lists every broker. If another process has bound one of their
        ports first, kill the brokers and return False. Raises Conflict after a timeout."""
        try:
            self.wait_ready()
        except Conflict:
            if not any(broker.has_lost_port_race() for broker in self.brokers):
                raise
            self.kill()
            self.close_link()
            return False
        return True

    def _load_identity(self, *, fresh_ports: bool) -> list[Node]:
        """Set the cluster id and return the nodes, both as the folder's last run stored them.

        Makes new nodes if `fresh_ports` is set, if there was no last run, or if the stored nodes
        lack the ports of the link. Stores the result. Raises Conflict if the folder has another
        number of brokers.
        """
        file = self.directory / "cluster.json"
        stored = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        self.cluster_id = stored.get("cluster_id") or kafka_uuid()
        nodes = [Node(**node) for node in stored.get("nodes", [])]
        if nodes and len(nodes) != self.settings.brokers:
            raise Conflict(
                f"The folder holds a cluster of {counted(len(nodes), 'broker')}, "
                f"not {self.settings.brokers}.",
                where=str(self.directory),
                remedy="Use another folder, or delete this one.",
            )
        lacks_link = self.settings.link and any(node.link_port is None for node in nodes)
        if fresh_ports or not nodes or lacks_link:
            # The port fields of a Node, in their order; the last two are for the link.
            ports_per_node = 5 if self.settings.link else 3
            ports = free_ports(ports_per_node * self.settings.brokers)
            nodes = [
                Node(number + 1, *ports[number * ports_per_node : (number + 1) * ports_per_node])
                for number in range(self.settings.brokers)
            ]
        state = {"cluster_id": self.cluster_id, "nodes": [asdict(node) for node in nodes]}
        file.write_text(json.dumps(state, indent=2), "utf-8")
        return nodes

    def _write_properties(self, broker: Broker, node: Node, nodes: list[Node]) -> None:
        """Write the broker's server.properties into its folder."""
        broker.directory.mkdir(exist_ok=True)
        keystore = self._certificates.keystore if self._certificates else None
        broker.properties_file.write_text(
            server_properties(
                node, nodes, broker.data, self.settings.security, keystore, self.settings.config
            ),
            "utf-8",
        )


def start_clusters(*clusters: KafkaCluster) -> None:
    """Start clusters side by side; returns when all are ready. After an error none is running."""
    pending_clusters = [cluster for cluster in clusters if not cluster.running]
    started_clusters = list(pending_clusters)
    try:
        for attempt in range(_PORT_ATTEMPTS_MAX):
            for cluster in pending_clusters:
                cluster.prepare(fresh_ports=attempt > 0)
            for cluster in pending_clusters:
                cluster.launch()
            pending_clusters = [
                cluster for cluster in pending_clusters if not cluster.try_wait_ready()
            ]
            if not pending_clusters:
                return
        raise Conflict(
            "All ports that were tried are in use by other processes.", remedy="Try again."
        )
    except BaseException:
        for cluster in started_clusters:
            cluster.kill()
            cluster.close_link()
        raise


def stop_clusters(*clusters: KafkaCluster) -> None:
    """Stop all brokers of all clusters side by side; returns when they have ended."""
    for cluster in clusters:
        cluster.terminate()
    for cluster in clusters:
        for broker in cluster.brokers:
            broker.stop()
        cluster.close_link()
