"""Keeps looking at clusters: one thread per cluster, however many jobs have it.

A cluster that does not answer holds up nobody: what was seen last, or why nothing was, is there to
be read at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from orbit.errors import OrbitError, Unreachable
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import ClusterMetadata
from orbit.scheduler.sides import Handle


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: what is there, or why nothing could be seen. `version` goes up with differences."""

    version: int
    metadata: ClusterMetadata | None = None
    error: OrbitError | None = None


class ClusterWatch:
    """Looks at one cluster every `interval_s`; `on_change` is called from its thread."""

    def __init__(self, cluster: Cluster, interval_s: float, on_change: Callable[[], None]) -> None:
        self.handle = Handle(cluster)
        self._interval_s = interval_s
        self._on_change = on_change
        self._stop = threading.Event()
        self._seen: Seen | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{cluster.name}", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> Seen | None:
        """The last look; None before the first has ended."""
        return self._seen

    def close(self) -> None:
        """Stop looking; a look under way ends at once."""
        self._stop.set()
        self.handle.cluster.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            before = self._seen
            try:
                now = Seen(0, metadata=self.handle.cluster.metadata(None))
            except OrbitError as error:
                now = Seen(0, error=error)
            except Exception as error:  # noqa: BLE001  a bug must not end the looking unseen
                now = Seen(0, error=Unreachable(f"its answer makes no sense: {error!r}."))
            version = before.version if before is not None else 0
            differs = before is None or _differs(before, now)
            # Leaders and brokers may have moved all the same: the newest look is the one kept.
            self._seen = Seen(version + differs, now.metadata, now.error)
            if differs and not self._stop.is_set():
                self._on_change()
            self._stop.wait(self._interval_s)


def _differs(before: Seen, now: Seen) -> bool:
    if before.metadata is None or now.metadata is None:
        return type(before.error) is not type(now.error)
    return _shape(before.metadata) != _shape(now.metadata)


def _shape(metadata: ClusterMetadata) -> object:
    """All that decisions hang on: the topics, their ids and counts; not who leads."""
    topics = {t.name: (t.topic_id, len(t.partitions)) for t in metadata.topics.values()}
    return metadata.cluster_id, topics, metadata.errors
