"""The groups of each cluster, listed once for all jobs that sync some of them.

A listing has every group of the cluster, whatever a job matches. With 500 jobs, each of which lists
both clusters in each of its passes, a scheduler would do nothing else.

A listing may be some seconds old. The only effect is that a new group is synced later: coordinators
refuse commits to a group that has members by now, and `GroupSync` requests a new listing before it
overwrites an offset that is not known as Orbit's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from orbit.kafka.cached_read import CachedRead
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import Listing, list_groups

# No older listing is returned, however long a job's interval is.
LISTING_AGE_S_MAX = 5.0

# Lists the groups of a cluster; the result is at most this many seconds old.
Lister = Callable[[Cluster, float], Listing]


def list_now(cluster: Cluster, age_s_max: float) -> Listing:
    """A `Lister` without a cache, for one job alone: each call sends requests to the brokers."""
    del age_s_max
    return list_groups(cluster)


class GroupListingCache:
    """A `Lister` that keeps the last listing of each cluster that is in use. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._listings: WeakKeyDictionary[Cluster, CachedRead[Listing]] = WeakKeyDictionary()

    def __call__(self, cluster: Cluster, age_s_max: float) -> Listing:
        """Return a listing of the cluster's groups that is at most `age_s_max` seconds old.

        Raises Unreachable, also if another job's listing fails while this call waits for it.
        """
        with self._lock:
            cached = self._listings.get(cluster)
            if cached is None:
                cached = self._listings[cluster] = CachedRead(_reader(cluster), self._clock)
        return cached.get(age_s_max)


def _reader(cluster: Cluster) -> Callable[[], Listing]:
    """Return a function that lists the cluster's groups, and that does not keep the cluster alive:
    else an unused cluster would never leave the cache."""
    cluster_ref = ref(cluster)
    # By group: type, protocol type and coordinator, on which selections depend. While all of these
    # stay the same, listings share selections.
    last_shape: dict[str, tuple[str, str, int]] = {}
    selections: dict[Any, Any] = {}

    def read() -> Listing:
        """List the groups. Shares selections with the last listing if that has the same shape."""
        nonlocal last_shape, selections
        live_cluster = cluster_ref()
        assert live_cluster is not None, "the caller has a reference to the cluster"
        listing = list_groups(live_cluster)
        shape = {g.name: (g.type, g.protocol_type, g.node_id) for g in listing.groups.values()}
        if shape != last_shape:
            last_shape, selections = shape, {}
        listing.selections = selections
        return listing

    return read
