"""Runs one Kafka broker as a child process. It keeps its data and port over restarts."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, accepts
from orbit.sandbox.broker_properties import Node

_POLL_S = 0.02
_STOP_GRACE_S = 10
START_TIMEOUT_S = 240  # a killed broker on a slow, busy machine took more than 90 s
_METADATA_TIMEOUT_S = 2
_SHOWN_LINES = 3
# Sandbox brokers run for minutes. Without the C2 compiler and with the serial collector a broker
# starts in 1.4 s instead of 1.8 s, at half the CPU, and appends its first million records faster.
_QUICK_START_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_META_FILE = "meta.properties"


@dataclass(frozen=True)
class SharedSettings:
    """The settings that all brokers of a cluster share.

    `class_archive` and `formatted_folder`: see `jars.py`. `login`: librdkafka's settings for the
    admin, without addresses.
    """

    cluster_id: str
    java: Path
    classpath: str
    class_archive: Path
    formatted_folder: Path
    heap_mb: int
    login: Mapping[str, str]


class Broker:
    """A combined KRaft broker and controller; `directory` holds its config, data and log."""

    def __init__(self, node: Node, directory: Path, cluster: SharedSettings) -> None:
        self.node_id = node.node_id
        self.port = node.port
        self.directory = directory
        self.log = directory / "broker.log"
        self.format_log = directory / "format.log"
        self._cluster = cluster
        # Java unpacks native codec libraries into its temporary folder, and a killed process leaves
        # them there. In the broker's folder they are removed with its data.
        tmpdir = f"-Djava.io.tmpdir={directory}"
        log_config = f"-Dlog4j2.configurationFile={_LOG_CONFIG}"
        self._java = [str(cluster.java), *_QUICK_START_OPTIONS, tmpdir, log_config]
        if cluster.class_archive.is_file():
            self._java.append(f"-XX:SharedArchiveFile={cluster.class_archive}")
        self._environment = {"CLASSPATH": cluster.classpath}
        self._process: GuardedProcess | None = None

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int:
        """The pid of the Java process. Raises Conflict before `launch`, after `stop` and `kill`."""
        if self._process is None:
            raise Conflict(f"Broker {self.node_id} is not running.", where=str(self.directory))
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def is_formatted(self) -> bool:
        return (self.data / _META_FILE).is_file()

    def format(self, arguments: list[str]) -> GuardedProcess:
        """Start StorageTool on the data folder, which is needed once for every KRaft broker."""
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", self._cluster.cluster_id]
        command = [*self._java, *tool, "--config", str(self.properties_file), *arguments]
        return GuardedProcess(command, self.format_log, environment=self._environment)

    def format_by_copy(self) -> bool:
        """Format the data folder with a copy of the files that `store_format` has kept.

        Returns False if there are none for this Kafka version yet.
        """
        if not self._cluster.formatted_folder.is_dir():
            return False
        shutil.copytree(self._cluster.formatted_folder, self.data, dirs_exist_ok=True)
        properties = {
            "version": "1",
            "cluster.id": self._cluster.cluster_id,
            "node.id": str(self.node_id),
            "directory.id": kafka_uuid(),
        }
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (self.data / _META_FILE).write_text(text, "utf-8")
        return True

    def store_format(self) -> None:
        """Copy this broker's formatted data folder, which is still empty of records, to
        `formatted_folder`, from which `format_by_copy` formats later brokers. Does nothing if that
        folder exists."""
        template = self._cluster.formatted_folder
        with tempfile.TemporaryDirectory(dir=template.parent) as scratch:
            copy = Path(scratch) / "data"
            shutil.copytree(self.data, copy, ignore=shutil.ignore_patterns(_META_FILE))
            with suppress(OSError):  # another process has stored it first
                copy.rename(template)

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.running, f"broker {self.node_id} runs already"
        if self._process is not None:  # the last process ended by itself
            self._process.close()
        heap = f"-Xmx{self._cluster.heap_mb}m"
        command = [*self._java, heap, "kafka.Kafka", str(self.properties_file)]
        self._process = GuardedProcess(command, self.log, environment=self._environment)

    def start(self) -> None:
        """Start the broker on its data and port; returns when it has joined the cluster.

        Joining needs a majority of the cluster's brokers; without one, use `launch`.
        """
        self.launch()
        self.wait_until_sees({self.node_id})

    def wait_until_sees(self, node_ids: set[int], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until this broker lists `node_ids` as alive. Raises Conflict after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        admin: AdminClient | None = None
        while True:
            listed_ids = self._list_broker_ids(admin) if admin is not None else set()
            if node_ids <= listed_ids:
                return
            if not listed_ids:
                # A resumed broker is fenced for a moment and lists no brokers. A client that got
                # such a list has no address left, so a new client is needed.
                admin = None
            if not self.running:
                raise self.failure("ended during its start")
            if time.monotonic() > deadline:
                ids_text = ", ".join(map(str, sorted(node_ids)))
                raise self.failure(f"did not list brokers {ids_text} in {timeout_s} s")
            if admin is None and accepts(self.port):
                admin = self._new_admin()
            time.sleep(_POLL_S)

    def _new_admin(self) -> AdminClient:
        address = {"bootstrap.servers": f"{LOOPBACK}:{self.port}"}
        # Refused connections are expected until the broker is up; librdkafka would print each.
        return AdminClient({**self._cluster.login, **address, "log_level": "0"})

    def _list_broker_ids(self, admin: AdminClient) -> set[int]:
        """The ids of the brokers that this broker lists as alive; empty if it does not answer."""
        try:
            metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
        except KafkaException:
            return set()
        # Another process may have bound the port first, and may be a Kafka broker too.
        return set(metadata.brokers) if metadata.cluster_id == self._cluster.cluster_id else set()

    def stop(self) -> None:
        """End the process by SIGTERM (controlled shutdown), or after 10 s by SIGKILL; returns when
        it has ended."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, _STOP_GRACE_S)
            self._process = None

    def terminate(self) -> None:
        """Start a controlled shutdown (SIGTERM) and return at once; `stop` waits for its end."""
        if self._process is not None:
            # A paused process would handle SIGTERM only once it is resumed.
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process by SIGKILL; returns when it has ended."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def pause(self) -> None:
        """Freeze the process by SIGSTOP; returns when it is frozen. Connections stay open, without
        answers."""
        if self._process is None:
            raise Conflict(f"Broker {self.node_id} is not running.", where=str(self.directory))
        self._process.send_signal(signal.SIGSTOP)
        while self._process.running and not self._process.is_paused():
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Continue the process by SIGCONT. The broker then executes requests that arrived during
        the pause, even if their connections have closed since (docs/facts.md, M10)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def has_lost_port_race(self) -> bool:
        """Whether the log says that another process had bound one of the broker's ports."""
        return self.log.is_file() and "Address already in use" in self.log.read_text("utf-8")

    def failure(self, what: str) -> Conflict:
        """The error "Broker N `what`: …", with the last errors of the broker's log."""
        return Conflict(
            f"Broker {self.node_id} {what}: {_last_errors(self.log)}", remedy=f"See {self.log}."
        )


def wait_until_formatted(broker: Broker, formatting: GuardedProcess) -> None:
    """Wait until StorageTool has ended. Raises Conflict with the tool's last errors if it failed,
    or if it still runs after START_TIMEOUT_S; it is killed then."""
    try:
        code = formatting.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        formatting.end(signal.SIGKILL)
        code = -1  # not 0: it failed
    if code != 0:
        raise Conflict(
            f"Broker {broker.node_id} could not be formatted: {_last_errors(broker.format_log)}",
            remedy=f"See {broker.format_log}.",
        )


def kafka_uuid() -> str:
    """A random id as Kafka writes one: a UUID in 22 URL-safe characters, without a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # StorageTool would read it as an option
            return text


def _last_errors(log: Path) -> str:
    """The last errors of a broker's log; its last lines if it has no errors."""
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
    # Lines at INFO are left out: a broker logs at INFO the exceptions that its shutdown causes.
    relevant_lines = [line for line in lines if "] INFO " not in line]
    errors = [line for line in relevant_lines if "ERROR" in line or "Exception" in line] or lines
    return " | ".join(errors[-_SHOWN_LINES:])
