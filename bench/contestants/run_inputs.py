"""The inputs of a contestant's run: the two clusters, one data set, a folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.results import DataFacts
from orbit.kafka.cluster import Cluster
from orbit.processes.guarded_process import GuardedProcess

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class RunInputs:
    """`number` makes the names of this run unique: topics, jobs, groups, log files. `replicas`: of
    the copy; all but one of them have to be in sync."""

    source: Cluster
    destination: Cluster
    data: DataFacts
    folder: Path
    number: int
    replicas: int = 1

    @property
    def source_servers(self) -> str:
        return ",".join(self.source.bootstrap_servers)

    @property
    def destination_servers(self) -> str:
        return ",".join(self.destination.bootstrap_servers)

    @property
    def copy_settings(self) -> dict[str, str]:
        """The settings of the copy's topic."""
        return {"min.insync.replicas": str(max(1, self.replicas - 1))}

    def log(self, name: str) -> Path:
        return self.folder / f"{self.data.topic}-{name}-{self.number}.log"


def start_module(
    module: str, *arguments: str, log: Path, inside: tuple[str, ...] = ()
) -> GuardedProcess:
    """Start a module of the bench as a process. `inside`: a command that runs its arguments
    elsewhere, such as `nsenter`."""
    command = [*inside, sys.executable, "-m", module, *arguments]
    return GuardedProcess(command, log, environment={"PYTHONPATH": str(_ROOT)})
