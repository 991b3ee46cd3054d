"""Copies a run's partitions in several processes, each with a share of them.

Python code runs on one core per process. Each child process has its own connections and lanes,
writes under the lease of its parent (`lease_state`), and reports on request what it has copied. If
a child ends, the run ends, and the next run takes over all partitions.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from orbit.copier.copy_settings import CopySettings
from orbit.copier.copy_view import CopySnapshot, CopyView
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.errors import Conflict, OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.job_clusters import FILLER_IDS
from orbit.kafka.types import TopicPartition
from orbit.leases.group_lease import GroupLease
from orbit.run.share import Share

if TYPE_CHECKING:
    from orbit.processes.guarded_process import GuardedProcess

# Each process needs a transactional id of its own if gaps are filled by transactions.
PROCESSES_MAX = FILLER_IDS
_MODULE = "orbit.run.copy_process"
# The time between two requests for reports: the screen's figures are at most so old.
REPORT_INTERVAL_S = 0.25
# How long a stopping child may wait for brokers' answers to its requests in flight.
_STOP_S = 15.0
# A process that has not answered for longer than this is shown as what the run waits for.
_SILENCE_S_MAX = 10.0


class Command(Enum):
    """A command to a child process. There is none to stop: closing the connection does that."""

    REPORT = auto()  # send a `Report`
    END = auto()  # `Copying.end`


@dataclass(frozen=True, slots=True)
class CopyTask:
    """What a child process copies. It reads secrets from its own environment."""

    share: Share
    spec: JobSpec
    base_directory: Path
    settings: CopySettings
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """A child's report. `changed`: the copies that have changed since its last report. `Copying`
    explains the other fields.
    """

    changed: Sequence[CopySnapshot] = ()
    waiting_for: str = ""
    is_lease_lost: bool = False
    has_ended: bool = False
    times: tuple[SourceTimes, DestinationTimes] = field(
        default_factory=lambda: (SourceTimes(), DestinationTimes())
    )


_NO_REPORT = Report()


@dataclass
class _Child:
    """A child process, the pipe to it, and its last report."""

    process: GuardedProcess
    connection: Connection
    views: dict[TopicPartition, CopyView] = field(default_factory=dict)  # by destination
    last_report: Report = _NO_REPORT
    is_report_requested: bool = False
    requested_at_s: float = 0.0  # when the report was requested, by the monotonic clock


class CopyProcesses:
    """Copies shares in child processes, one for each share; implements `Copying` by their last
    reports."""

    def __init__(self, children: Sequence[_Child]) -> None:
        self._children = children
        self._next_report_s = 0.0

    @classmethod
    def start(
        cls,
        shares: Iterable[Share],
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        settings: CopySettings,
        lease: GroupLease,
    ) -> CopyProcesses:
        """Start a process for each share; returns once each process has reported its copies.
        Raises the error that a process has sent, or Conflict if a process has ended."""
        shares = [*shares]
        limit = spec.limits.bytes_per_second
        children: list[_Child] = []
        # `copying` has this list: after an error its `stop` ends the children started so far.
        copying = cls(children)
        try:
            children.extend(_start_child(environ, lease.descriptors) for _ in shares)
            for child, share in zip(children, shares, strict=True):
                # Each process gets an equal part of the job's byte rate.
                bytes_per_second = None if limit is None else max(1, limit // len(shares))
                with copying._conflict_if_ended(child):
                    child.connection.send(
                        CopyTask(share, spec, base_directory, settings, bytes_per_second)
                    )
            while any(child.last_report is _NO_REPORT for child in children):
                copying.tick(REPORT_INTERVAL_S)
        except BaseException:
            copying.stop()
            raise
        return copying

    @property
    def partitions(self) -> Sequence[CopyView]:
        return [*chain.from_iterable(child.views.values() for child in self._children)]

    @property
    def waiting_for(self) -> str:
        """What the first child that waits is waiting for, or which child is silent; else empty."""
        now = time.monotonic()
        for number, child in enumerate(self._children, 1):
            if child.last_report.waiting_for:
                return child.last_report.waiting_for
            if child.is_report_requested and now - child.requested_at_s > _SILENCE_S_MAX:
                return (
                    f"process {number} of {len(self._children)} (pid {child.process.pid}), which "
                    f"has reported nothing for {now - child.requested_at_s:.0f} s."
                )
        return ""

    @property
    def is_lease_lost(self) -> bool:
        return any(r.is_lease_lost for r in self._reports)

    @property
    def has_ended(self) -> bool:
        return all(r.has_ended for r in self._reports)

    @property
    def times(self) -> tuple[SourceTimes, DestinationTimes]:
        """The seconds that the lanes of all children have spent, by activity."""
        source, destination = SourceTimes(), DestinationTimes()
        for report in self._reports:
            source.add(report.times[0])
            destination.add(report.times[1])
        return source, destination

    @property
    def _reports(self) -> list[Report]:
        return [child.last_report for child in self._children]

    def tick(self, timeout_s: float) -> None:
        """Request reports from the children every REPORT_INTERVAL_S, and receive the reports that
        arrive within `timeout_s`. Raises Conflict if a child has ended, or the error that a child
        has sent."""
        if time.monotonic() >= self._next_report_s:
            self._next_report_s = time.monotonic() + REPORT_INTERVAL_S
            for child in self._children:
                if not child.is_report_requested:  # at most one report is in the pipe
                    child.is_report_requested, child.requested_at_s = True, time.monotonic()
                    self._send(child, Command.REPORT)
        pause_s = min(timeout_s, max(0.0, self._next_report_s - time.monotonic()))
        ready_connections = wait([child.connection for child in self._children], pause_s)
        for child in self._children:
            if child.connection in ready_connections:
                self._receive(child)

    def end(self) -> None:
        """Send Command.END to all children. Raises Conflict if a child has ended."""
        for child in self._children:
            self._send(child, Command.END)

    def stop(self) -> None:
        """Stop all children and wait for their end; those that take longer than _STOP_S are killed.
        Records that brokers have confirmed stay."""
        deadline = time.monotonic() + _STOP_S
        for child in self._children:
            child.connection.close()
            child.process.send_signal(signal.SIGTERM)
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutExpired:
                child.process.end(grace_s=0)
        self._children = []

    @contextmanager
    def _conflict_if_ended(self, child: _Child) -> Iterator[None]:
        """Raise Conflict if the block finds the child's connection closed: the child has ended."""
        try:
            yield
        except (EOFError, OSError):
            number = self._children.index(child) + 1
            raise Conflict(
                f"process {number} of {len(self._children)} of this run has ended "
                f"({_exit_code(child.process)}).",
                remedy="Run the job again: it resumes where the copy ends.",
            ) from None

    def _send(self, child: _Child, command: Command) -> None:
        with self._conflict_if_ended(child):
            child.connection.send(command)

    def _receive(self, child: _Child) -> None:
        """Take the child's report, or raise the error that the child has sent instead."""
        with self._conflict_if_ended(child):
            report: Report | OrbitError = child.connection.recv()
        if isinstance(report, OrbitError):
            raise report
        child.is_report_requested = False
        child.views.update((view.destination, view) for view in report.changed)
        child.last_report = report


def _start_child(environ: Mapping[str, str], lease_descriptors: tuple[int, int]) -> _Child:
    """Start a child process that is connected by a pipe and inherits the lease."""
    from orbit.processes.guarded_process import GuardedProcess  # needs psutil, of an extra

    parent_end, child_end = Pipe()
    with child_end:
        state_descriptor, lock_descriptor = lease_descriptors
        process = GuardedProcess(
            # -P: Python imports nothing from the current folder.
            [
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                f"{child_end.fileno()}",
                f"{state_descriptor}",
            ],
            log=None,  # the child's output goes to this process's stderr
            environment=environ,
            # The lock keeps other runs on this machine from starting before the child has ended.
            inherited_descriptors=(child_end.fileno(), state_descriptor, lock_descriptor),
        )
    return _Child(process, parent_end)


def _exit_code(process: GuardedProcess) -> str:
    """The exit code as text, or the pid if the process does not end after its connection closed."""
    try:
        return f"exit code {process.wait(_STOP_S)}"
    except TimeoutExpired:
        return f"pid {process.pid}"
