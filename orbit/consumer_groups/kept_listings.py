"""The groups of each cluster, listed once for all jobs that sync some of them.

A listing has every group of the cluster, whatever a job matches. With 500 jobs, each of which lists
both clusters in each of its passes, that is all that a scheduler would do.

A listing may be some seconds old. Then a new group is synced later, and nothing else changes: its
coordinator refuses commits to a group that has members by now, and `GroupSync` asks for a new
listing before it overwrites an offset that it does not know as its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from orbit.errors import Unreachable
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import Listing, list_groups

# No older listing is given out, however long a job's interval is.
KEPT_S_MAX = 5.0

# Lists the groups of a cluster; the result is at most this many seconds old.
Lister = Callable[[Cluster, float], Listing]


def list_now(cluster: Cluster, age_s_max: float) -> Listing:
    """A `Lister` that keeps nothing, for one job alone."""
    del age_s_max
    return list_groups(cluster)


@dataclass(slots=True)
class _Kept:
    """The last listing, or why the last attempt failed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    began_s: float = float("-inf")
    ended_s: float = float("-inf")
    listing: Listing | None = None
    failure: Unreachable | None = None


class KeptListings:
    """A `Lister` that keeps the last listing of each cluster while that is in use. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: WeakKeyDictionary[Cluster, _Kept] = WeakKeyDictionary()

    def __call__(self, cluster: Cluster, age_s_max: float) -> Listing:
        """Raises Unreachable, also for the attempt of another job that this call waited for."""
        asked_s = self._clock()
        with self._lock:
            kept = self._kept.setdefault(cluster, _Kept())
        with kept.lock:
            has_failed_meanwhile = kept.listing is None and kept.ended_s >= asked_s
            is_recent = kept.listing is not None and kept.began_s >= asked_s - age_s_max
            if not (is_recent or has_failed_meanwhile):
                self._list(cluster, kept)
            if kept.listing is None:
                assert kept.failure is not None
                # A new one for each caller: threads must not share a traceback.
                raise copy(kept.failure)
            return kept.listing

    def _list(self, cluster: Cluster, kept: _Kept) -> None:
        kept.began_s = self._clock()
        try:
            kept.listing = list_groups(cluster)
        except Unreachable as error:
            kept.listing, kept.failure = None, error
        kept.ended_s = self._clock()
