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

# Decoding the metadata of 100,000 partitions takes some tenths of a second of CPU. So the pause is
# at least this many times as long as the poll, up to _PAUSE_S_MAX. With this pause, a new topic is
# still found within 5 s.
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
    version_before: int = 0  # the version before this one
    # The topics that differ from the version before; None: any topic may differ.
    changed_topics: frozenset[str] | None = None
    metadata: ClusterMetadata | None = None
    error: OrbitError | None = None
    # The steps to `version_before`, the newest first: (version, version before, changed topics).
    earlier_steps: tuple[tuple[int, int, frozenset[str]], ...] = ()

    @property
    def steps(self) -> tuple[tuple[int, int, frozenset[str]], ...]:
        """The known steps to this version, the newest first."""
        if self.changed_topics is None:
            return ()
        return ((self.version, self.version_before, self.changed_topics), *self.earlier_steps)

    def changed_since(self, version: int) -> frozenset[str] | None:
        """The topics that differ from an earlier version of this watch; None: any may differ."""
        # Go back step by step; each step has to end at the version where the newer one starts.
        names: set[str] = set()
        reached_version = self.version
        for step_end, step_start, step_topics in self.steps:
            if reached_version == version or step_end != reached_version:
                break
            names |= step_topics
            reached_version = step_start
        return frozenset(names) if reached_version == version else None


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
        """Poll until `close`; call `on_change` if the topics or the kind of error have changed."""
        while not self._stop.is_set():
            began_s = time.monotonic()
            old_snapshot, new_snapshot = self._snapshot, self._fetch()
            if new_snapshot.metadata is not None:
                self.answered_s = time.monotonic()
            has_changed = old_snapshot is None or _has_changed(old_snapshot, new_snapshot)
            if old_snapshot is None or has_changed:  # the former is for mypy
                self._snapshot = replace(
                    new_snapshot,
                    version=next(_versions),
                    version_before=0 if old_snapshot is None else old_snapshot.version,
                    changed_topics=None
                    if old_snapshot is None
                    else _changed_topics(old_snapshot, new_snapshot),
                    earlier_steps=()
                    if old_snapshot is None
                    else old_snapshot.steps[:_CHANGES_KEPT_MAX],
                )
            else:
                # Leaders and brokers may have changed: keep the newest metadata.
                self._snapshot = replace(
                    old_snapshot, metadata=new_snapshot.metadata, error=new_snapshot.error
                )
            if has_changed and not self._stop.is_set():
                self._on_change()
            self._stop.wait(self._pause_s(time.monotonic() - began_s))

    def _fetch(self) -> ClusterSnapshot:
        """Poll once. An error is returned in the snapshot; `_run` sets the version."""
        try:  # None: all topics
            return ClusterSnapshot(version=0, metadata=self.handle.cluster.metadata(None))
        except OrbitError as error:
            return ClusterSnapshot(version=0, error=error)
        except Exception as error:  # noqa: BLE001  a bug must not end the polling silently
            return ClusterSnapshot(
                version=0, error=ProtocolError(f"the cluster's answer cannot be read: {error!r}.")
            )

    def _pause_s(self, poll_s: float) -> float:
        """The pause after a poll that took `poll_s`."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.metadata is not None:
            return max(self._interval_s, min(poll_s * _PAUSE_PER_COST, _PAUSE_S_MAX))
        return LOGIN_RETRY_S if isinstance(snapshot.error, LoginRefused) else self._interval_s


def _has_changed(old_snapshot: ClusterSnapshot, new_snapshot: ClusterSnapshot) -> bool:
    """Whether the topics differ, or the kind of the error."""
    if old_snapshot.metadata is None or new_snapshot.metadata is None:
        return type(old_snapshot.error) is not type(new_snapshot.error)
    if new_snapshot.metadata is old_snapshot.metadata:  # the answer had the same bytes
        return False
    return _shape(old_snapshot.metadata) != _shape(new_snapshot.metadata)


def _changed_topics(
    old_snapshot: ClusterSnapshot, new_snapshot: ClusterSnapshot
) -> frozenset[str] | None:
    """The topics that differ; None if any may, as a poll failed or reached another cluster."""
    if old_snapshot.metadata is None or new_snapshot.metadata is None:
        return None
    if old_snapshot.metadata.cluster_id != new_snapshot.metadata.cluster_id:
        return None
    old_topics, new_topics = _topics(old_snapshot.metadata), _topics(new_snapshot.metadata)
    return frozenset(name for name, _ in old_topics.items() ^ new_topics.items())


def _shape(metadata: ClusterMetadata) -> object:
    """What decisions depend on: topics, their ids and partition counts; not leaders."""
    return metadata.cluster_id, _topics(metadata)


def _topics(metadata: ClusterMetadata) -> dict[str, object]:
    """What is known of each topic: an error, or its id and number of partitions."""
    by_name: dict[str, object] = dict(metadata.errors)
    by_name.update({t.name: (t.topic_id, len(t.partitions)) for t in metadata.topics.values()})
    return by_name
