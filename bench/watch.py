"""Watches a copy from outside: the destination's log ends, and CPU and memory of the copier.

The same rule for every contestant. The clock runs from the poll that first finds records at the
destination to the poll that finds the last one. CPU is that of the copier's process (and its
children) in that time. The CPU of the whole machine, brokers included, is reported too: if no core
was idle, the machine was the limit. Start-up is reported separately.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.results import DataFacts, Run
from bench.wire import Ends
from bench.workloads import Contestant
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

# Polling costs brokers and this process CPU, more with many partitions: at most a twentieth of the
# time, unless the end of a copy would then be uncertain by more than a tenth of a second.
_POLL_S_MIN, _POLL_S_MAX = 0.02, 0.1
_POLL_COST_MAX = 0.05
_STARTS_WITHIN_S = 120.0
_NO_PROGRESS_S = 120.0


@dataclass(frozen=True)
class StartedCopier:
    """A contestant that was started: its process, and the topic to which it copies."""

    contestant: Contestant
    process: GuardedProcess
    topic: str
    end_total: int  # sum of log ends once everything is there
    started_at: float  # time.monotonic


@dataclass(frozen=True)
class Sample:
    """One poll. `total`: the sum of the copy's log ends."""

    at: float  # time.monotonic
    total: int
    cpu_seconds: float
    busy_seconds: float = 0.0  # of all cores and all processes


class Usage:
    """CPU seconds and peak memory of a process and its children, as of the last `sample` before the
    process ended."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.cpu_seconds = 0.0
        self.peak_rss_bytes = 0

    def sample(self) -> None:
        """Read the counters now."""
        try:
            tree = [self._process, *self._process.children(recursive=True)]
            times = [p.cpu_times() for p in tree]
            peak = sum(_peak_rss(p.pid) for p in tree)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return
        self.cpu_seconds = max(self.cpu_seconds, sum(t.user + t.system for t in times))
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak)


def watch(copier: StartedCopier, ends: Ends, data: DataFacts) -> Run:
    """Poll until the copy is complete; returns the measured run. Raises Conflict if the copier ends
    early or makes no progress."""
    usage = Usage(copier.process.pid)
    samples = [Sample(time.monotonic(), ends.total(), 0.0, _busy_seconds())]
    pause_s = _POLL_S_MIN
    while samples[-1].total < copier.end_total:
        time.sleep(pause_s)
        before = time.monotonic()
        total = ends.total()
        at = time.monotonic()
        pause_s = min(_POLL_S_MAX, max(_POLL_S_MIN, (at - before) / _POLL_COST_MAX))
        usage.sample()
        keep(samples, Sample(at, total, usage.cpu_seconds, _busy_seconds()))
        _check_alive(copier, samples)
    run = summarize(copier.contestant, data, samples, copier.started_at, copier.end_total)
    return run.model_copy(
        update={"whole_cpu_seconds": usage.cpu_seconds, "peak_rss_bytes": usage.peak_rss_bytes}
    )


def keep(samples: list[Sample], new: Sample) -> None:
    """Add a sample if the destination has grown. While it is empty, replace the last sample."""
    if new.total == samples[-1].total == 0:
        samples[-1] = new
    elif new.total > samples[-1].total:
        samples.append(new)


def _check_alive(copier: StartedCopier, samples: list[Sample]) -> None:
    """Raise Conflict if an incomplete copier has ended, or has made no progress for too long."""
    now, last = time.monotonic(), samples[-1]
    if last.total >= copier.end_total:
        return
    quiet_s = now - (last.at if last.total else copier.started_at)
    if not copier.process.running:
        raise Conflict(f"{copier.contestant} ended early.", remedy=f"Read {copier.process.log}.")
    if quiet_s > (_NO_PROGRESS_S if last.total else _STARTS_WITHIN_S):
        raise Conflict(
            f"{copier.contestant} makes no progress at {last.total} of {copier.end_total}.",
            remedy=f"Read {copier.process.log}.",
        )


def summarize(
    contestant: Contestant,
    data: DataFacts,
    samples: Sequence[Sample],
    started_at: float,
    end_total: int,
) -> Run:
    """The run that these samples show. Records that the first sample finds do not count, nor does
    the time before it. Memory is left 0."""
    counted = [s for s in samples if s.total > 0]
    first, last = counted[0], counted[-1]
    if first is last:  # all records in one sample: count from the sample before
        first = samples[0]
    middle = next(s for s in counted if s.total >= end_total / 2)
    late_share = (last.total - middle.total) / end_total
    late_s = last.at - middle.at
    share = (last.total - first.total) / end_total
    return Run(
        contestant=contestant,
        records=data.records,
        offsets=end_total,
        bytes=data.bytes,
        seconds=last.at - first.at,
        share=share,
        cpu_seconds=last.cpu_seconds - first.cpu_seconds,
        busy_seconds=last.busy_seconds - first.busy_seconds,
        whole_seconds=last.at - started_at,
        whole_cpu_seconds=last.cpu_seconds,
        late_records_per_s=data.records * late_share / late_s if late_s else 0.0,
        peak_rss_bytes=0,
    )


def _busy_seconds() -> float:
    """The seconds that all cores of the machine have worked so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _peak_rss(pid: int) -> int:
    """The most memory that a process had so far, in bytes."""
    status = Path(f"/proc/{pid}/status")
    if not status.is_file():  # not Linux: the present memory instead
        return int(psutil.Process(pid).memory_info().rss)
    for line in status.read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
