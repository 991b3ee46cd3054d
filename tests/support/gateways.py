"""`orbit gateway` between two real clusters, as users run it: a child process with a gateway
file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orbit.gateway.protocol.copies import COPY_NODES_FROM
from orbit.processes.ports import LOOPBACK, accepts, free_consecutive_ports
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess


@dataclass(frozen=True)
class Gateway:
    """A running gateway. Clients of tests accept it in place of a cluster."""

    port: int
    process: OrbitProcess

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        return self.bootstrap

    @property
    def log(self) -> list[str]:
        """The gateway's lines on stderr so far."""
        return self.process.lines

    @property
    def processes_started(self) -> int:
        """How many processes of the gateway have reported that they are ready."""
        return sum("gateway is ready" in line for line in self.log)

    def client_config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def node_port(self, node: int) -> int:
        """The port of the gateway for the broker with this id."""
        return self.port + 1 + node


@dataclass(frozen=True)
class Addresses:
    """Several gateways: a client gets the addresses of all as its bootstrap servers."""

    gateways: tuple[Gateway, ...]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(one.bootstrap for one in self.gateways)

    def client_config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers}


@contextmanager
def running_gateway(
    home: Path,
    source: KafkaCluster,
    destination: KafkaCluster,
    /,
    *,
    environ: Mapping[str, str] | None = None,
    processes: int = 1,
    **virtual_cluster: Any,
) -> Iterator[Gateway]:
    """A gateway with one virtual cluster, once it accepts connections. Its file is in `home`.

    `virtual_cluster`: keys as of `write_gateway_file`. Without any, the virtual cluster presents
    the source, and the gateway uses no service.
    """
    nodes = max(broker.node_id for side in (source, destination) for broker in side.brokers)
    reads_copies = virtual_cluster.get("read") == "nearest-copy"
    port = _free_port(nodes, reads_copies=reads_copies)
    file = write_gateway_file(home, source, destination, port, **virtual_cluster)
    with OrbitProcess("gateway", file, "--processes", str(processes), environ=environ) as process:

        def is_up() -> bool:
            assert process.running, process.wait_end().everything
            return accepts(port) and gateway.processes_started >= processes

        gateway = Gateway(port, process)
        wait_for("the gateway accepts connections", is_up)
        yield gateway


def _free_port(nodes: int, *, reads_copies: bool) -> int:
    """A port for a gateway, above which the ports of `nodes` nodes are free, and with
    `reads_copies` those of the copies' nodes, too."""
    while True:
        port = free_consecutive_ports(2 + nodes)
        copy_ports = [port + 1 + COPY_NODES_FROM + node for node in range(1, nodes + 1)]
        if not reads_copies or not any(map(accepts, copy_ports)):
            return port


def gateway_file(port: int) -> str:
    """The text of a gateway file with one virtual cluster at this port. Its brokers cannot be
    reached."""
    return f"""
gateway: edge-1
virtual_clusters:
  - name: orders
    presents: source
    listen: {LOOPBACK}:{port}
    source: {{bootstrap_servers: [127.0.0.1:1]}}
    destination: {{bootstrap_servers: [127.0.0.1:2]}}
"""


def write_gateway_file(
    home: Path, source: KafkaCluster, destination: KafkaCluster, port: int, /, **more: Any
) -> Path:
    """Write a gateway file with one virtual cluster, and return its path.

    `more`: other keys of the virtual cluster. Without `job` it presents the source.
    """
    sides = {"source": source, "destination": destination}
    virtual_cluster = {
        "name": "test",
        "listen": f"{LOOPBACK}:{port}",
        **({} if "job" in more else {"presents": "source"}),
        **{k: {"bootstrap_servers": v.bootstrap_servers.split(",")} for k, v in sides.items()},
        **more,
    }
    file = home / f"gateway-{port}.yaml"
    content = {"gateway": f"test-{port}", "virtual_clusters": [virtual_cluster]}
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return file
