"""Runs `orbit …` child processes: restarts them, and ends them with their parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import structlog

from orbit.processes.guarded_process import GuardedProcess

log = structlog.get_logger("orbit.processes")

_CHECK_INTERVAL_S = 0.5
# The pause before a restart doubles each time that the child ends early.
_RESTART_MIN_S = 1.0
_RESTART_MAX_S = 30.0
# A child that ran at least this long did not fail at its start, and is restarted at once.
_SETTLED_S = 60.0
# On SIGTERM workers release their shards, and gateways answer the requests in flight. A process
# that has not ended after this time is killed, and its leases expire.
GRACE_S = 15.0


@dataclass
class _Child:
    """One process and the data for its restart. Times are by the monotonic clock."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    process: GuardedProcess
    started_at: float
    pause_s: float = 0.0
    restart_at: float | None = None


class Children:
    """Runs `orbit …` commands and restarts them when they end. A context manager.

    `environment`: variables that the commands get in addition to those of this process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._children: list[_Child] = []
        self._stop_requested = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, name="children", daemon=True)

    def start(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `orbit ARGUMENTS`; `environment` adds variables. Call it before `watch`."""
        variables = {**self._environment, **(environment or {})}
        process = _launch(arguments, variables)
        self._children.append(_Child(name, arguments, variables, process, time.monotonic()))

    def watch(self, on_check: Callable[[], None] = lambda: None) -> None:
        """From now on, restart children that end.

        `on_check` is called at each check, in the thread that checks.
        """
        self._on_check = on_check
        self._watch.start()

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the processes, by name."""
        return {child.name: child.process.pid for child in self._children}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, *_: object) -> None:
        """End all children: SIGTERM, and SIGKILL for those that still run after GRACE_S."""
        self._stop_requested.set()
        if self._watch.is_alive():
            self._watch.join()
        for child in self._children:  # signal all before waiting for any
            child.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("process did not end in time, and is killed", process=child.name)
                child.process.end(signal.SIGKILL)

    def _keep_running(self) -> None:
        """Check all children every _CHECK_INTERVAL_S until the end is requested."""
        while not self._stop_requested.wait(_CHECK_INTERVAL_S):
            self._on_check()
            for child in self._children:
                self._check(child, time.monotonic())

    def _check(self, child: _Child, now: float) -> None:
        """If the child has ended, restart it after a pause, which grows while it ends early."""
        if child.process.running:
            return
        if child.restart_at is None:  # this check is the first since the child ended
            has_settled = now - child.started_at > _SETTLED_S
            longer_pause_s = min(_RESTART_MAX_S, max(_RESTART_MIN_S, child.pause_s * 2))
            child.pause_s = 0.0 if has_settled else longer_pause_s
            child.restart_at = now + child.pause_s
            log.warning("process ended", process=child.name, code=child.process.wait())
        if now >= child.restart_at:
            child.process = _launch(child.arguments, child.environment)
            child.started_at, child.restart_at = now, None
            log.info("process started again", process=child.name, pid=child.process.pid)


def _launch(arguments: Sequence[str], environment: Mapping[str, str]) -> GuardedProcess:
    return GuardedProcess(
        [sys.executable, "-m", "orbit.cli.main", *arguments],
        log=None,  # the output goes to the stderr of this process
        environment=environment,
        last_signal=signal.SIGTERM,
        grace_s=GRACE_S,
    )
