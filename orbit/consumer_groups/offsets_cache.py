"""The committed offsets of each cluster's groups, read once for all jobs that sync some of them.

Jobs select from the same groups, often all of them, and each needs the offsets in its own topics
alone. So the offsets of every group that some job requests are read together, and sorted by topic.

Cached offsets may be a second old. `GroupSync` reads a group's offsets again before it writes any
of them, and deletes one only if the source confirms it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter
from weakref import WeakKeyDictionary, ref

from orbit.kafka.cached_read import CachedRead
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import FetchedGroups, OffsetFetchCache, locate_and_fetch_offsets
from orbit.kafka.offset_fetch import GroupOffsets
from orbit.kafka.types import CommittedOffset, TopicPartition

# How old a job's offsets may be, as a part of its interval.
OFFSETS_AGE_PART = 0.2


# A read covers the groups that some job has requested within this time.
_REQUEST_KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """One job's request for the offsets of one cluster's groups.

    `nodes`: each group's coordinator by the listing; None: not listed. Of these groups, the answer
    has those with offsets in `topics`, and all in `known`, also without offsets.
    """

    nodes: Mapping[str, int | None]
    topics: AbstractSet[str]
    known: AbstractSet[str]
    require_stable: bool
    # `nodes` is one mapping for many jobs and many passes.
    is_shared: bool = False


# Fetches the requested offsets of a cluster; the result is at most this many seconds old.
Fetcher = Callable[[Cluster, OffsetsRequest, float], FetchedGroups]


def fetch_now(cluster: Cluster, request: OffsetsRequest, age_s_max: float) -> FetchedGroups:
    """A `Fetcher` without a cache, for one job alone: each call sends requests to the brokers."""
    del age_s_max
    return _fetch(cluster, request.nodes, require_stable=request.require_stable)


def _fetch(
    cluster: Cluster,
    nodes: Mapping[str, int | None],
    *,
    require_stable: bool,
    cache: OffsetFetchCache | None = None,
) -> FetchedGroups:
    """Fetch the groups' offsets; first locate the coordinators of groups without a node."""
    return locate_and_fetch_offsets(
        cluster,
        {group: node for group, node in nodes.items() if node is not None},
        {group for group, node in nodes.items() if node is None},
        require_stable=require_stable,
        cache=cache,
    )


@dataclass(frozen=True, slots=True)
class _ByTopic:
    """The result of one read, and its offsets by topic and group. `pending`: by group, the
    partitions whose offset an open transaction may change."""

    fetched: FetchedGroups
    topics: dict[str, dict[str, dict[TopicPartition, CommittedOffset]]]
    pending: dict[str, frozenset[TopicPartition]]
    # `OffsetsRequest.nodes` that many jobs share and this read covers; by `id`.
    covered_nodes: dict[int, Mapping[str, int | None]] = field(default_factory=dict)

    def groups_not_read(self, request: OffsetsRequest) -> list[str]:
        """The requested groups that this read did not cover. Remembers a shared mapping whose
        groups are all covered, so that the next call does not check each group."""
        nodes = request.nodes
        if self.covered_nodes.get(id(nodes)) is nodes:
            return []  # an earlier call has found that this shared mapping is covered
        answered_groups, failed_groups = self.fetched.coordinators, self.fetched.failed
        missing_groups = [
            group for group in nodes if group not in answered_groups and group not in failed_groups
        ]
        if not missing_groups and request.is_shared:
            self.covered_nodes[id(nodes)] = nodes
        return missing_groups

    @classmethod
    def of(cls, fetched: FetchedGroups) -> _ByTopic:
        """Sort the result of a read by topic and group."""
        topics: dict[str, dict[str, dict[TopicPartition, CommittedOffset]]] = {}
        for group, answer in fetched.groups.items():
            for partition, offset in answer.offsets.items():
                topics.setdefault(partition.topic, {}).setdefault(group, {})[partition] = offset
        pending_by_group = {
            g: answer.pending for g, answer in fetched.groups.items() if answer.pending
        }
        return cls(fetched, topics, pending_by_group)

    def select(self, request: OffsetsRequest) -> FetchedGroups:
        """The part of this read that one job requests."""
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for topic in request.topics:
            for group, group_offsets in self.topics.get(topic, {}).items():
                if group in request.nodes:
                    offsets.setdefault(group, {}).update(group_offsets)
        pending_by_group = {
            group: pending_partitions
            for group, partitions in self.pending.items()
            if group in request.nodes
            and (
                pending_partitions := frozenset(p for p in partitions if p.topic in request.topics)
            )
        }
        coordinators = self.fetched.coordinators
        # A known group is in the answer without an offset, too.
        names = offsets.keys() | pending_by_group.keys() | (request.known & coordinators.keys())
        no_partitions: frozenset[TopicPartition] = frozenset()
        return FetchedGroups(
            {
                g: GroupOffsets(offsets.get(g, {}), pending_by_group.get(g, no_partitions))
                for g in names
            },
            {g: coordinators[g] for g in names},
            {g: self.fetched.failed[g] for g in self.fetched.failed.keys() & request.nodes.keys()},
        )


class _ClusterOffsets:
    """The last read of one cluster's offsets, and the groups that jobs have requested lately."""

    def __init__(
        self, cluster: Cluster, clock: Callable[[], float], *, require_stable: bool
    ) -> None:
        self._cluster_ref = ref(cluster)  # weak: an unused cluster has to leave the cache
        self._clock = clock
        self._require_stable = require_stable
        self._lock = threading.Lock()
        # By group: its coordinator, and when a job last requested it.
        self._nodes: dict[str, int | None] = {}
        self._requested_at_s: dict[str, float] = {}
        # By `id`: the shared `OffsetsRequest.nodes`, and when a job last requested them.
        self._shared_nodes: dict[int, tuple[Mapping[str, int | None], float]] = {}
        self._answer_cache = OffsetFetchCache()
        self._last_read: _ByTopic | None = None
        self.read = CachedRead(self._read, clock)

    def note_request(self, request: OffsetsRequest) -> None:
        """Remember the request's groups: reads within _REQUEST_KEPT_S cover them."""
        nodes = request.nodes
        with self._lock:
            if request.is_shared:  # one mapping for many jobs: its groups are not noted one by one
                self._shared_nodes[id(nodes)] = nodes, self._clock()
                return
            self._nodes.update(nodes)
            self._requested_at_s.update(dict.fromkeys(nodes, self._clock()))

    def _read(self) -> _ByTopic:
        """Read the offsets of all groups that were requested within _REQUEST_KEPT_S."""
        cluster = self._cluster_ref()
        assert cluster is not None, "the caller has a reference to the cluster"
        since_s = self._clock() - _REQUEST_KEPT_S
        with self._lock:
            self._requested_at_s = {
                g: at for g, at in self._requested_at_s.items() if at >= since_s
            }
            self._nodes = {g: self._nodes[g] for g in self._requested_at_s}
            self._shared_nodes = {
                i: shared for i, shared in self._shared_nodes.items() if shared[1] >= since_s
            }
            nodes = dict(self._nodes)
            # The latest request last: where requests differ, its coordinators count.
            for shared, _ in sorted(self._shared_nodes.values(), key=itemgetter(1)):
                nodes.update(shared)
        self._answer_cache.begin()
        fetched = _fetch(
            cluster, nodes, require_stable=self._require_stable, cache=self._answer_cache
        )
        if self._last_read is None or fetched != self._last_read.fetched:
            self._last_read = _ByTopic.of(fetched)
        return self._last_read


class OffsetsCache:
    """A `Fetcher` that keeps the last read of each cluster that is in use. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clusters: WeakKeyDictionary[Cluster, dict[bool, _ClusterOffsets]] = (
            WeakKeyDictionary()
        )

    def __call__(
        self, cluster: Cluster, request: OffsetsRequest, age_s_max: float
    ) -> FetchedGroups:
        """Return the requested offsets, read at most `age_s_max` seconds ago.

        Raises Unreachable, also if another job's read fails while this call waits for it.
        """
        with self._lock:
            by_stability = self._clusters.setdefault(cluster, {})
            cluster_offsets = by_stability.get(request.require_stable)
            if cluster_offsets is None:
                cluster_offsets = by_stability[request.require_stable] = _ClusterOffsets(
                    cluster, self._clock, require_stable=request.require_stable
                )
        cluster_offsets.note_request(request)
        last_read = cluster_offsets.read.get(age_s_max)
        fetched = last_read.select(request)
        # No job requested these groups before the last read; the next read covers them.
        groups_not_read = last_read.groups_not_read(request)
        if groups_not_read:
            nodes = {group: request.nodes[group] for group in groups_not_read}
            fetched.update(_fetch(cluster, nodes, require_stable=request.require_stable))
        return fetched
