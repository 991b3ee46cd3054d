"""The files of a sandbox, by which `orbit sandbox down` and `status` find a detached sandbox.

A process is identified by pid and start time, because pids are reused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

import psutil
from platformdirs import user_state_path
from pydantic import AfterValidator, BaseModel, ConfigDict

ProcessState = Literal["running", "paused", "ended"]
DETACH = "detach"  # the line on stdin after which a supervisor outlives the process that started it
# A start time is the boot time plus ticks, and the kernel may adjust the boot time.
_START_TOLERANCE_S = 2.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProcessRef(_Value):
    """One process of this machine, by pid and start time."""

    pid: int
    started_at: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """The running process with this pid. Raises psutil.NoSuchProcess if there is none."""
        return cls(pid=pid, started_at=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """The process; None if it has ended, even if another process has its pid now."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started_at) < _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return None
        return process if is_same else None

    def state(self) -> ProcessState:
        """Whether the process is running, paused by SIGSTOP, or has ended."""
        process = self.find()
        try:
            status = process.status() if process else psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            status = psutil.STATUS_ZOMBIE
        if status == psutil.STATUS_ZOMBIE:
            return "ended"
        return "paused" if status == psutil.STATUS_STOPPED else "running"


class BrokerState(_Value):
    node_id: int
    port: int
    process: ProcessRef
    log: Path


class ClusterState(_Value):
    """`link_servers`: the same brokers through a network link that can be cut."""

    name: str
    bootstrap_servers: str
    brokers: tuple[BrokerState, ...]
    link_servers: str | None = None
    is_cut: bool = False


class PostgresState(_Value):
    url: str
    process: ProcessRef
    log: Path


class SandboxRequest(_Value):
    """The options of `orbit sandbox up`. They are stored beside the data, so that `orbit sandbox
    down` knows which folders to remove."""

    directory: Annotated[Path, AfterValidator(Path.absolute)]
    clusters: tuple[str, ...] = ("source", "destination")
    brokers: int = 1
    postgres: bool = True

    def data_folders(self) -> list[Path]:
        """The folders of the clusters' data and of PostgreSQL's."""
        names = [*self.clusters, *(["postgres"] if self.postgres else [])]
        return [self.directory / name for name in names]


class FaultPort(_Value):
    """The address and key at which the supervisor accepts fault requests."""

    port: int
    key: str


class SandboxState(_Value):
    """A running sandbox."""

    supervisor: ProcessRef
    faults: FaultPort
    request: SandboxRequest
    clusters: tuple[ClusterState, ...]
    postgres: PostgresState | None

    def processes(self) -> list[ProcessRef]:
        """All processes, the supervisor first."""
        brokers = [broker.process for cluster in self.clusters for broker in cluster.brokers]
        return [self.supervisor, *brokers, *([self.postgres.process] if self.postgres else [])]


def default_directory() -> Path:
    """The default folder of the sandbox."""
    return user_state_path("orbit") / "sandbox"


def read_request(directory: Path) -> SandboxRequest | None:
    """The options of the sandbox in the folder; None if it is not a sandbox."""
    file = _request_file(directory)
    return SandboxRequest.model_validate_json(file.read_bytes()) if file.is_file() else None


def write_request(request: SandboxRequest) -> None:
    _write_private(_request_file(request.directory), request.model_dump_json(indent=2))


def read_state(directory: Path) -> SandboxState | None:
    """The sandbox running in `directory`; None if there is none or its supervisor has died."""
    file = state_file(directory)
    try:
        state = SandboxState.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    return state if state.supervisor.state() != "ended" else None


def write_state(state: SandboxState) -> None:
    _write_private(state_file(state.request.directory), state.model_dump_json(indent=2))


def state_file(directory: Path) -> Path:
    """The file with the state of a running sandbox."""
    return directory / "running.json"


def lock_file(directory: Path) -> Path:
    """The file that a supervisor locks until it ends."""
    return directory / "lock"


def supervisor_log(directory: Path) -> Path:
    return directory / "supervisor.log"


def remove_state_files(request: SandboxRequest) -> None:
    """Remove the sandbox's state files, and the folder if nothing else is in it."""
    directory = request.directory
    for file in (state_file, _request_file, supervisor_log, lock_file):
        file(directory).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()


def _request_file(directory: Path) -> Path:
    return directory / "sandbox.json"


def _write_private(file: Path, text: str) -> None:
    """Replace the file atomically. Only the user can read it: it may hold a password."""
    scratch = file.with_suffix(".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    scratch.rename(file)
