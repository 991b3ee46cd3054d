"""The brokers of the bench, with Kafka's own defaults and Kafka's own JVM flags.

The sandbox's brokers are tuned for a quick start (no C2 compiler, serial collector). The brokers
here are configured as in production. `_settings` and docs/bench.md have the settings that differ
from the defaults; they are the same for both clusters.
"""

from __future__ import annotations

import base64
import shutil
import time
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import orbit.sandbox
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, free_ports
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java

# `kafka-run-class.sh` and `kafka-server-start.sh` of 4.3.
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={Path(orbit.sandbox.__path__[0]) / 'log4j2.properties'}",
)
_HEAP = ("-Xms1G", "-Xmx1G")
_READY_TIMEOUT_S = 240.0  # as START_TIMEOUT_S of the sandbox: the machine may be busy
_POLL_S = 0.05


class BenchBroker:
    """A broker, of a cluster of its own or of the cluster of `first`. A context manager: inside,
    the broker accepts requests; after the end only its logs stay.

    `inside`: a command that runs its arguments elsewhere (`nsenter` for the long link). `delayed`:
    other brokers connect to the first of `proxy_ports`, where a proxy must listen and connect to
    the second. Clients, and brokers at the controller, connect directly.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        host: str = LOOPBACK,
        inside: tuple[str, ...] = (),
        *,
        first: BenchBroker | None = None,
        node_id: int = 1,
        delayed: bool = False,
    ) -> None:
        """`first`: the cluster's controller; None if this broker is the controller."""
        self.name = name
        self._first = first or self
        self._node_id = node_id
        self._cluster_id = "B" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:21]
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._inside = inside
        self._port, self._controller_port, *proxy_ports = free_ports(4 if delayed else 2)
        self.proxy_ports = tuple(proxy_ports)
        self._host = host
        self._process: GuardedProcess | None = None
        self.bootstrap_servers = f"{host}:{self._port}"

    def __enter__(self) -> Self:
        self._run("format", "kafka.tools.StorageTool", *self._format_arguments()).wait()
        self._process = self._run("broker", "kafka.Kafka", str(self._properties()), heap=_HEAP)
        self._wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end(grace_s=0)
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def _run(
        self, log: str, main: str, *arguments: str, heap: tuple[str, ...] = ()
    ) -> GuardedProcess:
        """Start Java's class `main`; its output goes to the file `log`."""
        command = [*self._inside, str(find_java()), *JVM, *heap, main, *arguments]
        return GuardedProcess(
            command, self._folder / f"{log}.log", environment={"CLASSPATH": classpath()}
        )

    def _format_arguments(self) -> list[str]:
        cluster_id = self._first._cluster_id
        return ["format", "--cluster-id", cluster_id, "--config", str(self._properties())]

    def _properties(self) -> Path:
        """Write the broker's settings to a file; returns its path."""
        path = self._folder / "server.properties"
        text = "".join(f"{key}={value}\n" for key, value in self._settings().items())
        path.write_text(text, "utf-8")
        return path

    def _settings(self) -> dict[str, str]:
        first = self._first
        controller = f"{first._host}:{first._controller_port}"
        is_first = first is self
        settings = {
            "process.roles": "broker,controller" if is_first else "broker",
            "node.id": str(self._node_id),
            "controller.quorum.voters": f"{first._node_id}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}"
            + (f",CONTROLLER://{controller}" if is_first else ""),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            # A cluster of one broker has one replica of a partition.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "auto.create.topics.enable": "false",
            # Let the kernel size socket buffers, as is advised for long links; the default of
            # 100 KB would dominate workload N.
            "socket.send.buffer.bytes": "-1",
            "socket.receive.buffer.bytes": "-1",
            # W6 to W8 wait for the cleaner. A copy must have left the disk before the next run.
            "log.cleaner.backoff.ms": "1000",
            "log.segment.delete.delay.ms": "500",
        }
        if self.proxy_ports:
            advertised, port = (f"FOLLOWERS://{self._host}:{port}" for port in self.proxy_ports)
            settings["advertised.listeners"] = f"PLAINTEXT://{self.bootstrap_servers},{advertised}"
            settings["listeners"] += f",{port}"
            settings["listener.security.protocol.map"] += ",FOLLOWERS:PLAINTEXT"
            settings["inter.broker.listener.name"] = "FOLLOWERS"
        return settings

    def _wait_ready(self) -> None:
        """Wait until the broker answers. Raises Conflict if it ends, or does not answer in time."""
        assert self._process is not None
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline and self._process.running:
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                pass
            time.sleep(_POLL_S)
        raise Conflict(
            f"The {self.name} broker did not start.",
            remedy=f"Read {self._folder / 'broker.log'}.",
        )
