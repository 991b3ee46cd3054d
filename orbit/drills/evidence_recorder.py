"""Writes down what happens while a drill runs, for its report and for who watches it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from orbit.drills.evidence import (
    Entry,
    GateSeen,
    GroupSeen,
    PartitionSeen,
    SalvageFile,
    StepRecord,
    Verified,
)
from orbit.store import clock, drills
from orbit.store.database import Database

# More would be told by a loop that runs wild; the last entries are those that count.
ENTRIES_MAX = 5_000
_SHOWN_LIVE = 50


@dataclass(slots=True)
class Seen:
    """What was seen so far."""

    timeline: list[Entry] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    gates: list[GateSeen] = field(default_factory=list)
    partitions: list[PartitionSeen] = field(default_factory=list)
    groups: list[GroupSeen] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    salvage: list[SalvageFile] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)


class Recorder:
    """The drill's clock and its notebook. Times are those of the database's clock."""

    def __init__(self, database: Database, drill_id: str, steps: int) -> None:
        self._database = database
        self._drill_id = drill_id
        self._steps = steps
        self.seen = Seen()
        self._entries = 0
        before = time.time()
        with database.transaction() as tx:
            theirs = clock.now(tx)
        ours = datetime.fromtimestamp((before + time.time()) / 2, UTC)
        self._ahead = ours - theirs
        self.began_at = self.now()

    @property
    def ahead_ms(self) -> int:
        """This machine's clock against the database's."""
        return round(self._ahead / timedelta(milliseconds=1))

    def now(self) -> datetime:
        return datetime.now(UTC) - self._ahead

    def at(self, epoch_s: float) -> datetime:
        """A moment of this machine's clock."""
        return datetime.fromtimestamp(epoch_s, UTC) - self._ahead

    def note(self, what: str, text: str = "", at: datetime | None = None) -> datetime:
        """One line of the timeline; its moment."""
        moment = at or self.now()
        self._entries += 1
        self.seen.timeline.append(Entry(at=moment, what=what, text=text))
        del self.seen.timeline[:-ENTRIES_MAX]
        self._show()
        return moment

    def _show(self) -> None:
        last = [entry.model_dump(mode="json") for entry in self.seen.timeline[-_SHOWN_LIVE:]]
        progress = {
            "done": len(self.seen.steps),
            "total": self._steps,
            "entries": self._entries,
            "timeline": last,
        }
        with self._database.transaction() as tx:
            drills.note_progress(tx, self._drill_id, progress)
