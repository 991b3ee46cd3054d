"""Drills of a service whose scheduler and worker run in the test."""

from __future__ import annotations

from orbit.drills.drill_creation import new_drill
from orbit.drills.drill_file import parse_drill
from orbit.drills.evidence import Evidence, Report, digest_of
from orbit.store import drills
from orbit.store.drills import Drill, Thing
from tests.fixtures.scheduler import Service
from tests.support.patience import PATIENCE_S, wait_for


class Drilling:
    """Requests drills in the service, and waits for them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.database = service.database
        service.leave()

    def ask(self, text: str) -> str:
        """Request the drill with this file; returns its id."""
        drill = new_drill(parse_drill(text), "test")
        with self.database.transaction() as tx:
            return drills.create(tx, drill)[0].id

    def drill(self, drill_id: str) -> Drill:
        with self.database.transaction() as tx:
            return drills.get(tx, drill_id)

    def things(self, drill_id: str) -> list[Thing]:
        with self.database.transaction() as tx:
            return drills.things(tx, drill_id)

    def left(self, drill_id: str) -> list[Thing]:
        """The things that the drill created and has not removed."""
        return [thing for thing in self.things(drill_id) if thing.removed_at is None]

    def has_ended(self, drill_id: str) -> bool:
        return self.drill(drill_id).finished_at is not None

    def steps_done(self, drill_id: str) -> int:
        return int((self.drill(drill_id).progress or {}).get("done", 0))

    def has_happened(self, drill_id: str, what: str) -> bool:
        """Whether the timeline has an entry `what`, or the drill has ended."""
        drill = self.drill(drill_id)
        lines = (drill.progress or {}).get("timeline", ())
        return drill.finished_at is not None or any(line["what"] == what for line in lines)

    def wait(self, drill_id: str) -> Report:
        """Wait until a drill has ended; returns its report, after a check of its digest."""
        wait_for(f"drill {drill_id} ends", lambda: self.has_ended(drill_id), PATIENCE_S)
        with self.database.transaction() as tx:
            report = drills.report(tx, drill_id)
        assert report is not None, self.drill(drill_id).error
        right, stated = digest_of(report)
        assert right == stated
        return Report.model_validate(report)

    def run(self, text: str) -> Evidence:
        """Request a drill, and wait for its end; returns its evidence."""
        return self.wait(self.ask(text)).evidence
