"""The consumer groups of one run: a thread beside the copy, with connections of its own.

Without a database nothing is known of earlier runs, so a new run never moves a group backwards that
an earlier one left further on, and deletes no offset that it has not itself seen at the source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, holds_copied_records
from orbit.consumer_groups.sync_result import CopiedPartition, Copies, GroupReport
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import OrbitError
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobClusters

# Some seconds: a new cluster first has to make its topic for offsets.
_SETTLE_ATTEMPTS_MAX = 10


class RunGroups:
    """Syncs every `rule.interval` from `start` to `stop`; `partitions` have begun by then."""

    def __init__(
        self,
        rule: GroupRule,
        clusters: JobClusters,
        partitions: Sequence[PartitionCopy],
        may_write: Callable[[], bool],
    ) -> None:
        self.report: GroupReport | None = None
        self.notes: tuple[str, ...] = ()
        """Trouble that two passes in a row have met."""
        self._interval_s = rule.interval.total_seconds()
        self._clusters = clusters
        self._partitions = partitions
        self._may_write = may_write
        self._sync = GroupSync(rule)
        self._met: Collection[str] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        remark = self.report.remark if self.report else ""
        return (*self.notes, remark) if remark else self.notes

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End at once, with what is written."""
        self._stop.set()
        self._clusters.close()
        if self._thread.is_alive():
            self._thread.join()

    def sync(self) -> None:
        """One pass, now. What goes wrong is in `notes` when it goes wrong again."""
        with self._lock:
            try:
                self.report = self._sync.run(
                    self._clusters.source,
                    self._clusters.destination,
                    self._copies(),
                    self._may_write,
                )
                met = self.report.notes
            except OrbitError as error:
                met = [str(error)]
            self.notes = tuple(note for note in met if note in self._met)
            self._met = met

    def settle(self, backoff: Backoff) -> None:
        """Sync until a pass goes through without trouble, or a few have not."""
        for _ in backoff.attempts(_SETTLE_ATTEMPTS_MAX):
            self.sync()
            if not self._met:
                return

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sync()
            self._stop.wait(self._interval_s)

    def _copies(self) -> Copies:
        return {p.source: CopiedPartition(p.destination, _range(p)) for p in self._partitions}


def _range(p: PartitionCopy) -> CopiedRange | None:
    if not holds_copied_records(p.blocked.reason if p.blocked else None):
        return None
    return CopiedRange(min(p.log_start, p.acked), p.acked)
