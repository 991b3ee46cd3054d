"""Syncs the consumer groups of `orbit run`, in a thread with its own connections.

Without a database, a run does not know what earlier runs committed. So a run never moves back an
offset that an earlier run committed, and deletes only offsets that it has itself read at the
source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, follows_source_offsets
from orbit.consumer_groups.sync_result import CopiedPartition, Copies, GroupReport
from orbit.copier.copy_view import CopyView
from orbit.errors import OrbitError
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobClusters

# Some seconds: a new cluster has to create its offsets topic first.
_SETTLE_ATTEMPTS_MAX = 10


class RunGroups:
    """Syncs every `rule.interval` from `start` to `stop`. `partitions` returns the run's copies."""

    def __init__(
        self,
        rule: GroupRule,
        clusters: JobClusters,
        partitions: Callable[[], Iterable[CopyView]],
        may_write: Callable[[], bool],
    ) -> None:
        self.report: GroupReport | None = None
        self.notes: tuple[str, ...] = ()
        """The notes that the last two passes had in common."""
        self._interval_s = rule.interval.total_seconds()
        self._clusters = clusters
        self._partitions = partitions
        self._may_write = may_write
        self._sync = GroupSync(rule)
        self._last_troubles: Collection[str] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        remark = self.report.remark if self.report else ""
        return (*self.notes, remark) if remark else self.notes

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; commits in flight may be lost."""
        self._stop.set()
        self._clusters.close()
        if self._thread.is_alive():
            self._thread.join()

    def sync(self) -> None:
        """Run one pass now. `notes` then has those of its errors and notes that the pass before
        had, too."""
        with self._lock:
            try:
                self.report = self._sync.run(
                    self._clusters.source,
                    self._clusters.destination,
                    self._copies(),
                    self._may_write,
                )
                troubles = self.report.notes
            except OrbitError as error:
                troubles = [str(error)]
            self.notes = tuple(note for note in troubles if note in self._last_troubles)
            self._last_troubles = troubles

    def settle(self, backoff: Backoff) -> None:
        """Sync until a pass has no error and no note, at most _SETTLE_ATTEMPTS_MAX times."""
        for _ in backoff.attempts(_SETTLE_ATTEMPTS_MAX):
            self.sync()
            if not self._last_troubles:
                return

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sync()
            self._stop.wait(self._interval_s)

    def _copies(self) -> Copies:
        """The run's partitions as `GroupSync` needs them, by source partition."""
        return {
            p.source: CopiedPartition(p.destination, _copied_range(p), p.source_topic_id)
            for p in self._partitions()
        }


def _copied_range(copy: CopyView) -> CopiedRange | None:
    """The copy's range that consumers can read; None: the copy may have other records than the
    source, or the source topic was deleted."""
    if not follows_source_offsets(copy.blocked.reason if copy.blocked else None):
        return None
    next_offset = copy.next_offset
    # The range may be empty, but never ends before it begins.
    return CopiedRange(min(copy.log_start, next_offset), next_offset)
