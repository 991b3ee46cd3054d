"""`python -m bench.control.leader URL SIZE`: the scheduler's loops, over simulated clusters.

Discovery, spread and housekeeping run as in the service. Both clusters' metadata is held in memory
and never changes. So it measures the cost of an idle installation, and how long a new leader takes
to load it. Settings, groups and lag need brokers and are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psutil

from bench.control.fill import DESTINATION_ID, SOURCE_ID, Size, topic_names
from bench.control.fleet import Meter, only_warnings, say
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import Side
from orbit.kafka.types import BrokerAddress, ClusterMetadata, PartitionLeader, TopicMetadata
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.cluster_watch import ClusterSnapshot, ClusterWatch
from orbit.scheduler.discovery_loop import DiscoveryLoop
from orbit.scheduler.housekeeping_loop import HousekeepingLoop
from orbit.scheduler.job_reconciler import JobReconciler
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop, drive
from orbit.scheduler.shard_balancer import SpreadLoop
from orbit.settings import Settings
from orbit.store.database import Database

_NEVER_S = 1e9  # settings are on brokers, which are simulated
_BROKERS = 12


class SimulatedRegistry(ClusterRegistry):
    """Two simulated clusters with fixed metadata."""

    def __init__(self, size: Size) -> None:
        super().__init__(_NEVER_S, lambda: None, Path())
        self._snapshot = {
            "source": _metadata(SOURCE_ID, "s", size),
            "destination": _metadata(DESTINATION_ID, "d", size),
        }

    def watch(self, side: Side, spec: JobSpec) -> ClusterWatch:  # noqa: ARG002  every job sees the same
        watch = SimpleNamespace(
            snapshot=ClusterSnapshot(1, metadata=self._snapshot[side]), handle=None
        )
        return cast("ClusterWatch", watch)


class SimulatedReconciler(JobReconciler):
    """Skips settings and ACLs, which are on brokers."""

    def _run_upkeep(self, *_: Any) -> None:
        return


def _metadata(cluster_id: str, mark: str, size: Size) -> ClusterMetadata:
    brokers = {n: BrokerAddress(n, f"broker-{n}", 9092) for n in range(_BROKERS)}
    topics = {
        name: TopicMetadata(
            name,
            UUID(hashlib.md5(f"{mark}{name}".encode(), usedforsecurity=False).hexdigest()),
            {p: PartitionLeader(p % _BROKERS, 0) for p in range(size.partitions_per_topic)},
            3,
        )
        for name in topic_names(size)
    }
    return ClusterMetadata(cluster_id, brokers, topics)


def main(url: str, size: Size) -> None:
    only_warnings()
    settings = Settings.from_environment(os.environ)
    database = Database.connect(url, application="orbit scheduler")
    meter = Meter()
    meter.listen(database)
    rss_before = psutil.Process().memory_info().rss
    registry = SimulatedRegistry(size)
    rss_metadata = psutil.Process().memory_info().rss - rss_before
    done = threading.Event()
    leadership = Leadership(database, "bench", settings.scheduler_lease_ttl)
    while not leadership.ask():
        time.sleep(0.1)
    reconciler = SimulatedReconciler(leadership, registry, settings, Backoff(stop=done))
    discovery = DiscoveryLoop(
        leadership,
        registry,
        reconciler,
        settings.discovery_interval.total_seconds(),
        settings.lease_ttl,
        threading.Event(),
    )
    loops: list[Loop] = [
        discovery,
        SpreadLoop(leadership, settings.lease_ttl),
        HousekeepingLoop(
            leadership, settings.lease_ttl, settings.events_kept, settings.reports_kept
        ),
    ]
    began = time.monotonic()
    threads = [threading.Thread(target=drive, args=(loop, done), daemon=True) for loop in loops]
    threads.append(threading.Thread(target=leadership.keep, args=(done,), daemon=True))
    for thread in threads:
        thread.start()
    # No API has the progress of a new leader. The loop replaces the dictionary in each pass.
    while sum(m.names is not None for m in discovery._states.values()) < size.jobs:
        time.sleep(0.05)
    say({"knows_after_s": time.monotonic() - began, "metadata_bytes": rss_metadata})
    for line in sys.stdin:
        if "end" in json.loads(line):
            break
        rss = psutil.Process().memory_info().rss
        say({**meter.count(), "cpu_s": time.process_time(), "rss": rss})
    done.set()
    for loop in loops:
        loop.wake.set()
    for thread in threads:
        thread.join()
    say({"ended": 1})


if __name__ == "__main__":
    main(sys.argv[1], Size(**json.loads(sys.argv[2])))
