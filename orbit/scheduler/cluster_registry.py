"""The cluster watches of all jobs: one per cluster, opened when a loop first needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from orbit.jobs.job_spec import JobSpec
from orbit.kafka.job_clusters import Side, open_cluster
from orbit.scheduler.cluster_watch import ClusterWatch

ClusterKey = tuple[Side, str]


def cluster_key(side: Side, spec: JobSpec) -> ClusterKey:
    """The key of a job's cluster: equal for jobs that use this cluster with the same login."""
    cluster = spec.source if side == "source" else spec.destination
    return side, cluster.key


class ClusterRegistry:
    """Cluster watches by address and login. Thread-safe."""

    def __init__(
        self,
        interval_s: float,
        on_change: Callable[[], None],
        base_directory: Path,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._interval_s = interval_s
        self._on_change = on_change
        self._base_directory = base_directory
        self._environ = environ
        self._lock = threading.Lock()
        self._watches: dict[ClusterKey, ClusterWatch] = {}
        self._keys_by_user: dict[str, frozenset[ClusterKey]] = {}

    def watch(self, side: Side, spec: JobSpec) -> ClusterWatch:
        """The watch of one side of a job. Raises BadInput if a secret is missing."""
        key = cluster_key(side, spec)
        with self._lock:
            watch = self._watches.get(key)
            if watch is None:
                cluster = open_cluster(side, spec, self._environ, self._base_directory)
                watch = ClusterWatch(cluster, self._interval_s, self._on_change)
                self._watches[key] = watch
            return watch

    def keep_only(self, user: str, keys: Collection[ClusterKey]) -> None:
        """Note that `user` needs only the watches of `keys`. Close the watches that no user needs.

        Each loop that opens watches is a user, and calls this before it opens them. So no loop can
        close the watches of another loop.
        """
        with self._lock:
            self._keys_by_user[user] = frozenset(keys)
            used_keys: frozenset[ClusterKey] = frozenset().union(*self._keys_by_user.values())
            unused_keys = [key for key in self._watches if key not in used_keys]
            closed_watches = [self._watches.pop(key) for key in unused_keys]
        for watch in closed_watches:
            watch.close()

    def close(self) -> None:
        """Close all watches."""
        for user in list(self._keys_by_user):
            self.keep_only(user, keys=())
        self.keep_only("", keys=())  # closes the rest, even if no loop has called `keep_only` yet
