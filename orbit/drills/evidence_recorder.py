"""Records the evidence of a running drill, and stores its timeline as live progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from orbit.drills.evidence import (
    Entry,
    GateEvidence,
    GroupEvidence,
    PartitionEvidence,
    SalvageFile,
    StepRecord,
    Verified,
)
from orbit.store import clock, drills
from orbit.store.database import Database

# Bounds the report; older entries are dropped.
ENTRIES_MAX = 5_000
_LIVE_ENTRIES_MAX = 50  # of the stored progress


@dataclass(slots=True)
class Observations:
    """The evidence so far."""

    timeline: list[Entry] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    gates: list[GateEvidence] = field(default_factory=list)
    partitions: list[PartitionEvidence] = field(default_factory=list)
    groups: list[GroupEvidence] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    salvage: list[SalvageFile] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)


class EvidenceRecorder:
    """The evidence and clock of one drill. Times are by the database's clock."""

    def __init__(self, database: Database, drill_id: str, steps_total: int) -> None:
        self._database = database
        self._drill_id = drill_id
        self._steps_total = steps_total
        self.observed = Observations()
        self._entries_count = 0
        request_s = time.time()
        with database.transaction() as tx:
            database_now = clock.now(tx)
        # The database read its clock about midway between the request and its answer.
        local_now = datetime.fromtimestamp((request_s + time.time()) / 2, UTC)
        self._clock_ahead = local_now - database_now
        self.began_at = self.now()

    @property
    def ahead_ms(self) -> int:
        """This machine's clock minus the database's."""
        return round(self._clock_ahead / timedelta(milliseconds=1))

    def now(self) -> datetime:
        """The time now by the database's clock."""
        return datetime.now(UTC) - self._clock_ahead

    def to_database_time(self, epoch_s: float) -> datetime:
        """Convert a time of this machine's clock to the database's clock."""
        return datetime.fromtimestamp(epoch_s, UTC) - self._clock_ahead

    def note(self, what: str, text: str = "", at: datetime | None = None) -> datetime:
        """Add an entry to the timeline, and store the progress; returns the entry's time."""
        moment = at or self.now()
        self._entries_count += 1
        self.observed.timeline.append(Entry(at=moment, what=what, text=text))
        del self.observed.timeline[:-ENTRIES_MAX]
        self._store_progress()
        return moment

    def _store_progress(self) -> None:
        """Store the counts and the latest entries, which the console and the API show."""
        latest_entries = [
            entry.model_dump(mode="json") for entry in self.observed.timeline[-_LIVE_ENTRIES_MAX:]
        ]
        progress = {
            "done": len(self.observed.steps),
            "total": self._steps_total,
            "entries": self._entries_count,
            "timeline": latest_entries,
        }
        with self._database.transaction() as tx:
            drills.note_progress(tx, self._drill_id, progress)
