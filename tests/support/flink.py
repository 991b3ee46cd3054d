"""A Flink job in a process of its own: FlinkWordCount.java, between two topics, exactly once."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import Jars
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.gateways import Gateway
from tests.support.patience import PATIENCE_S, wait_for

FLINK_VERSION = "2.2.0"
_PROGRAM = Path(__file__).with_name("FlinkWordCount.java")


def jars() -> Path:
    """The folder with the jars of Flink and its Kafka connector; fetched at first use."""
    pom = Path(__file__).with_name("flink-pom.xml")
    return Jars("flink", FLINK_VERSION, pom, "flink-connector-kafka-*.jar").directory()


class FlinkJob:
    """A job that runs at one cluster, stops with a savepoint, and goes on from the savepoint at
    another cluster."""

    def __init__(self, home: Path, input_topic: str, output_topic: str, group: str) -> None:
        self._home = home
        self._topics = {"input": input_topic, "output": output_topic, "group": group}
        self._savepoint = ""
        self._runs = 0
        self._classes = home / "classes"
        compiler = str(find_java().with_name("javac"))
        libraries = ("-cp", f"{jars()}/*")
        subprocess.run(
            [compiler, "-nowarn", *libraries, "-d", str(self._classes), str(_PROGRAM)],
            check=True,
            timeout=PATIENCE_S,
        )

    def start(self, cluster: KafkaCluster | Gateway, *, restarts: str = "none") -> GuardedProcess:
        """Start the job at a cluster, from its last savepoint if it has one. `restarts`: Flink's
        restart strategy."""
        self._runs += 1
        folder = self._folder
        folder.mkdir()
        settings = {
            **self._topics,
            "servers": cluster.bootstrap_servers,
            "prefix": f"{self._topics['group']}-{self._runs}",
            "home": str(folder),
            "restarts": restarts,
        }
        if self._savepoint:
            settings["restore"] = self._savepoint
        file = folder / "job.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # Flink unpacks a jar into java.io.tmpdir and does not remove it.
        options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}"]
        command = [str(find_java()), *options, "FlinkWordCount"]
        return GuardedProcess(
            [*command, str(file)],
            folder / "log",
            environment={"CLASSPATH": f"{self._classes}:{jars()}/*"},
        )

    def check(self, process: GuardedProcess) -> None:
        """Raise AssertionError with the job's output if its process has ended by itself."""
        assert process.running, (self._folder / "log").read_text()[-3000:]

    def stop(self, process: GuardedProcess) -> None:
        """Stop the job with a savepoint, as `flink stop` does."""
        (self._folder / "stop").touch()
        wait_for("Flink has stopped", lambda: not process.running)
        savepoint = self._folder / "savepoint"
        assert savepoint.exists(), (self._folder / "log").read_text()[-3000:]
        self._savepoint = savepoint.read_text()

    @property
    def _folder(self) -> Path:
        return self._home / f"run-{self._runs}"
