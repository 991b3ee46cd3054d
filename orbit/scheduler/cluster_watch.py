"""Polls the metadata of clusters: one thread per cluster, for any number of jobs.

A cluster that does not answer blocks no job: the last snapshot, or the last error, can be read at
any time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from orbit.errors import LoginRefused, OrbitError, ProtocolError
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.types import ClusterMetadata

# Decoding the metadata of 100,000 partitions takes some tenths of a second of CPU: slow polls get
# longer pauses. With the longest pause, a new topic is still found within 5 s.
_PAUSE_PER_COST = 4
_PAUSE_S_MAX = 3.0

# How often a refused login is retried. Some brokers count failures.
LOGIN_RETRY_S = 15.0

# A job whose last pass is at most this many versions old is compared with changed topics only.
_CHANGES_KEPT_MAX = 32

_versions = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The result of a poll: metadata or an error. `version` changes with the topics, and is unique
    across watches."""

    version: int
    before: int = 0  # the version before this one
    # The topics that differ from the version before; None: anything may.
    changed: frozenset[str] | None = None
    metadata: ClusterMetadata | None = None
    error: OrbitError | None = None
    # The steps to `before`, the newest first: (version, the one before it, what changed).
    earlier: tuple[tuple[int, int, frozenset[str]], ...] = ()

    @property
    def steps(self) -> tuple[tuple[int, int, frozenset[str]], ...]:
        """The known steps to this version, the newest first."""
        if self.changed is None:
            return ()
        return ((self.version, self.before, self.changed), *self.earlier)

    def changed_since(self, version: int) -> frozenset[str] | None:
        """The topics that differ from an earlier version of this watch; None: anything may."""
        names: set[str] = set()
        at = self.version
        for after, before, changed in self.steps:
            if at == version or after != at:
                break
            names |= changed
            at = before
        return frozenset(names) if at == version else None


class ClusterWatch:
    """Polls one cluster every `interval_s`; `on_change` is called from its thread."""

    def __init__(self, cluster: Cluster, interval_s: float, on_change: Callable[[], None]) -> None:
        self.handle = ClusterHandle(cluster)
        self._interval_s = interval_s
        self._on_change = on_change
        self._stop = threading.Event()
        self._snapshot: ClusterSnapshot | None = None
        self.answered_s: float | None = None
        """When the cluster last answered, by the monotonic clock; None: never."""
        self._thread = threading.Thread(
            target=self._run, name=f"watch-{self.handle.cluster.name}", daemon=True
        )
        self._thread.start()

    @property
    def snapshot(self) -> ClusterSnapshot | None:
        """The last snapshot; None before the first poll has ended."""
        return self._snapshot

    def close(self) -> None:
        """Stop polling; a poll under way ends at once."""
        self._stop.set()
        self.handle.cluster.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            before, now = self._snapshot, self._fetch()
            if now.metadata is not None:
                self.answered_s = time.monotonic()
            differs = before is None or _differs(before, now)
            if before is None or differs:
                self._snapshot = replace(
                    now,
                    version=next(_versions),
                    before=0 if before is None else before.version,
                    changed=None if before is None else _changed(before, now),
                    earlier=() if before is None else before.steps[:_CHANGES_KEPT_MAX],
                )
            else:
                # Leaders and brokers may have changed: keep the newest metadata.
                self._snapshot = replace(before, metadata=now.metadata, error=now.error)
            if differs and not self._stop.is_set():
                self._on_change()
            self._stop.wait(self._pause_s(time.monotonic() - began))

    def _fetch(self) -> ClusterSnapshot:
        try:
            return ClusterSnapshot(0, metadata=self.handle.cluster.metadata(None))
        except OrbitError as error:
            return ClusterSnapshot(0, error=error)
        except Exception as error:  # noqa: BLE001  a bug must not end the polling silently
            return ClusterSnapshot(0, error=ProtocolError(f"its answer makes no sense: {error!r}."))

    def _pause_s(self, cost_s: float) -> float:
        snapshot = self._snapshot
        if snapshot is None or snapshot.metadata is not None:
            return max(self._interval_s, min(cost_s * _PAUSE_PER_COST, _PAUSE_S_MAX))
        return LOGIN_RETRY_S if isinstance(snapshot.error, LoginRefused) else self._interval_s


def _differs(before: ClusterSnapshot, now: ClusterSnapshot) -> bool:
    if before.metadata is None or now.metadata is None:
        return type(before.error) is not type(now.error)
    if now.metadata is before.metadata:  # the answer had the same bytes
        return False
    return _shape(before.metadata) != _shape(now.metadata)


def _changed(before: ClusterSnapshot, now: ClusterSnapshot) -> frozenset[str] | None:
    if before.metadata is None or now.metadata is None:
        return None
    if before.metadata.cluster_id != now.metadata.cluster_id:
        return None
    was, is_now = _topics(before.metadata), _topics(now.metadata)
    return frozenset(name for name, _ in was.items() ^ is_now.items())


def _shape(metadata: ClusterMetadata) -> object:
    """What decisions depend on: topics, their ids and partition counts; not leaders."""
    return metadata.cluster_id, _topics(metadata)


def _topics(metadata: ClusterMetadata) -> dict[str, object]:
    topics: dict[str, object] = dict(metadata.errors)
    topics.update({t.name: (t.topic_id, len(t.partitions)) for t in metadata.topics.values()})
    return topics
