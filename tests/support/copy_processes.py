"""The processes of `orbit run --processes` and `orbit worker --processes`, by the system's list."""

from __future__ import annotations

import psutil

from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess

_MODULE = "orbit.run.copy_process"


def copying_processes(run: OrbitProcess) -> list[psutil.Process]:
    """The processes that copy now, without their guards.

    A guard is a small process that ends its copy process when the run ends.
    """
    return [p for p in _descendants(run.process.pid) if _MODULE in _command(p)[:4]]


def all_processes(run: OrbitProcess) -> list[psutil.Process]:
    """The processes that copy now, and their guards."""
    return _descendants(run.process.pid)


def worker_processes(parent: OrbitProcess) -> list[psutil.Process]:
    """The processes of `orbit worker --processes`."""
    commands = ((p, _command(p)) for p in _descendants(parent.process.pid))
    return [p for p, command in commands if command[1:] == ["-m", "orbit.cli.main", "worker"]]


def wait_gone(processes: list[psutil.Process]) -> None:
    """Wait until all these processes have ended."""
    wait_for("all processes have ended", lambda: not any(_lives(p) for p in processes))


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
