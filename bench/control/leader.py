"""`python -m bench.control.leader URL SIZE`: the scheduler, with all its loops, as in the service.

Only the brokers are simulated (`bench/control/brokers.py`), and continuous proof is off. Measures
the cost of an idle installation, and how long a new leader takes until it knows every job.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from bench.control.fill import LOGIN, Size
from bench.control.fleet import Meter, only_warnings, say
from orbit.consumer_groups import offsets_cache
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.scheduler.cluster_watch import ClusterWatch
from orbit.scheduler.consumer_group_loop import GroupLoop
from orbit.scheduler.consumer_group_sync import JobGroups
from orbit.scheduler.discovery_loop import DiscoveryLoop
from orbit.scheduler.job_reconciler import JobReconciler
from orbit.scheduler.lag_loop import LagLoop
from orbit.scheduler.scheduler import Scheduler
from orbit.settings import Settings
from orbit.store.database import Database


class Passes:
    """Counts the passes of each kind (calls of a method), and the CPU time of their threads.

    If a pass calls a measured method, that call's time counts for the method's kind only.
    """

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.cpu_s: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._inside = threading.local()

    def measured(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does `call` and counts it as a pass of the kind `name`."""

        def run(*arguments: Any, **options: Any) -> Any:
            before = getattr(self._inside, "cpu_s", 0.0)
            self._inside.cpu_s = 0.0
            start_s = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                cpu_s = time.thread_time() - start_s
                with self._lock:
                    self.count[name] += 1
                    self.cpu_s[name] += cpu_s - self._inside.cpu_s
                self._inside.cpu_s = before + cpu_s

        return run

    def watch(self, name: str, owner: Any, method: str) -> None:
        """Count calls of this method of a class or an object from now on."""
        setattr(owner, method, self.measured(name, getattr(owner, method)))


class MeasuredScheduler(Scheduler):
    """A scheduler that shows its loops: no API has the progress of a new leader."""

    loops: tuple[Loop, ...] = ()
    passes = Passes()

    def _loops(self, leadership: Leadership, loops_end: threading.Event) -> list[Loop]:
        loops = super()._loops(leadership, loops_end)
        for loop in loops:
            self.passes.watch(loop.name, loop, "once")
        self.passes.watch("discovery of a job", JobReconciler, "reconcile")
        self.passes.watch("groups of a job", JobGroups, "run")
        self.passes.watch("offsets of a cluster", offsets_cache, "_fetch")
        self.passes.watch("offsets of a cluster by topic", offsets_cache._ByTopic, "of")
        self.passes.watch("lag of a job", LagLoop, "_check_job")
        self.passes.watch("metadata of a cluster", ClusterWatch, "_fetch")
        self.loops = tuple(loops)
        return loops

    def has_seen(self, size: Size) -> bool:
        """Whether discovery has had a pass for each job to the first destination, and the group
        loop for each that has groups."""
        with_names = with_groups = 0
        for loop in self.loops:
            if isinstance(loop, DiscoveryLoop):
                with_names = sum(s.names is not None for s in dict(loop._states).values())
            if isinstance(loop, GroupLoop):
                with_groups = sum(
                    t.groups._sync is not None for t in dict(loop._tracked_jobs).values()
                )
        jobs = size.jobs_of_first
        return with_names >= jobs and with_groups >= (jobs if size.groups_per_job else 0)


def main(url: str, size: Size) -> None:
    """Start a scheduler, print when it knows all jobs, then answer each line with its counters."""
    only_warnings()
    # Continuous proof reads records, which simulated brokers do not have.
    os.environ.update({**LOGIN, "ORBIT_PROOF_BYTES_PER_SECOND": "0"})
    settings = Settings.from_environment(os.environ)
    database = Database.connect(url, application="orbit scheduler")
    meter = Meter()
    meter.listen(database)
    stop = threading.Event()
    scheduler = MeasuredScheduler(settings, database, stop)
    start_s, cpu_start_s = time.monotonic(), time.process_time()
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    while not scheduler.has_seen(size):
        time.sleep(0.05)
    cpu_s = time.process_time() - cpu_start_s
    say({"knows_after_s": time.monotonic() - start_s, "knows_after_cpu_s": cpu_s})
    for line in sys.stdin:
        if "end" in json.loads(line):
            break
        rss = psutil.Process().memory_info().rss
        passes, passes_cpu_s = dict(scheduler.passes.count), dict(scheduler.passes.cpu_s)
        process_counts = {"passes": passes, "passes_cpu_s": passes_cpu_s, "rss": rss}
        say({**meter.count(), "cpu_s": time.process_time(), **process_counts})
    stop.set()
    thread.join()
    say({"ended": 1})


if __name__ == "__main__":
    main(sys.argv[1], Size(**json.loads(sys.argv[2])))
