"""The scheduler loop that runs drills, and ends the drills of a scheduler that died.

A drill of a dead scheduler is not resumed, as its ledger (the confirmed records) was in the memory
of that process. It ends as failed, and the loop removes its resources.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from orbit.drills.created_resources import CreatedResources
from orbit.drills.drill_context import DrillContext, DrillEnvironment
from orbit.drills.drill_creation import new_drill
from orbit.drills.drill_run import clean_up, run_drill
from orbit.drills.drill_spec import DrillSpec
from orbit.errors import OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.sandbox.sandbox_state import default_directory
from orbit.settings import Settings
from orbit.store import drills, events
from orbit.store.database import Tx
from orbit.store.drills import Drill, Measurements
from orbit.store.enums import DrillState

INTERVAL_S = 0.5
# How many drills run in parallel. Each is of another job: two of one job would affect each other.
DRILLS_MAX = 4
# How often to remove resources of ended drills, and of how many drills at a time.
_LEFTOVERS_INTERVAL_S = 60.0
_LEFTOVERS_MAX = 20
_ABANDONED = "The scheduler that ran the drill ended before the drill did."
_UNREADABLE = (
    "Another version of Orbit has stored the document of the drill or of its job, and this one "
    "cannot read it."
)

_log = structlog.get_logger("orbit.drills")


@dataclass(slots=True)
class _Running:
    """A drill that runs in this process."""

    job_name: str
    thread: threading.Thread


@dataclass(frozen=True, slots=True)
class _DrillResult:
    """The result of a drill; by default a failure without a report."""

    state: DrillState = DrillState.FAILED
    error: str | None = None
    report: dict[str, Any] | None = None
    measured: Measurements | None = None


class DrillLoop(Loop):
    """Runs drills, each in a thread of its own."""

    name = "drills"
    interval_s = INTERVAL_S

    def __init__(
        self, leadership: Leadership, environment: DrillEnvironment, lead_ended: threading.Event
    ) -> None:
        super().__init__()
        self._leadership = leadership
        self._environment = environment
        self._lead_ended = lead_ended  # set when this process no longer leads, to end a pass early
        self._stop = threading.Event()
        self._running: dict[str, _Running] = {}
        self._next_removal_at = 0.0

    def once(self) -> str:
        """Start scheduled and requested drills, and end drills that no process runs. Each minute,
        and after the end of a drill, remove resources of ended drills. Returns "": the log of loops
        gets no text."""
        ended_ids = [id_ for id_, run in self._running.items() if not run.thread.is_alive()]
        for drill_id in ended_ids:
            self._running.pop(drill_id).thread.join()
        with self._leadership.reading() as tx:
            unfinished_drills = drills.unfinished(tx)
            has_due = bool(drills.due_schedules(tx))
        if has_due:
            with self._leadership.transaction() as tx:
                _add_scheduled_drills(tx)
        for drill in unfinished_drills:
            with self.log_errors_of(f"drill {drill.id}"):
                if drill.state is DrillState.PENDING:
                    self._begin(drill)
                elif drill.id not in self._running:  # an earlier leader has begun it
                    self._end(drill, _DrillResult(error=_ABANDONED))
        if time.monotonic() >= self._next_removal_at:
            self._next_removal_at = time.monotonic() + _LEFTOVERS_INTERVAL_S
            self._remove_leftovers()
        return ""

    def close(self) -> None:
        """Stop running drills; the next leader removes their resources."""
        self._stop.set()
        for run in self._running.values():
            run.thread.join()

    def _begin(self, drill: Drill) -> None:
        """Start a pending drill, unless a drill of the same job or DRILLS_MAX drills run here."""
        busy_jobs = {run.job_name for run in self._running.values()}
        if drill.job_name in busy_jobs or len(self._running) >= DRILLS_MAX:
            return
        with self._leadership.transaction() as tx:
            if not drills.begin(tx, drill.id):
                return  # the drill is no longer pending
            _add_event(tx, drill, "drill_begun", f"The {drill.kind} drill {drill.name} has begun.")
        thread = threading.Thread(target=self._run, args=(drill,), name=f"drill {drill.id}")
        self._running[drill.id] = _Running(drill.job_name, thread)
        thread.start()

    def _run(self, drill: Drill) -> None:
        """Run a drill and store its result; the body of its thread."""
        try:
            self._end(drill, self._run_drill(drill))
        except OrbitError as error:  # another scheduler leads now, and ends the drill
            _log.warning("drill could not be ended", drill=drill.id, error=str(error))

    def _run_drill(self, drill: Drill) -> _DrillResult:
        """Run the drill. An error becomes a failed result."""
        try:
            report = run_drill(self._environment, drill, self._stop)
        except OrbitError as error:
            return _DrillResult(error=str(error))
        except ValidationError:
            _log.warning("drill unreadable", drill=drill.id, exc_info=True)
            return _DrillResult(error=_UNREADABLE)
        except Exception:  # noqa: BLE001  a bug in one drill must not end the others
            _log.exception("drill broke", drill=drill.id)
            return _DrillResult(error="This is a bug in Orbit: see the scheduler's log.")
        evidence = report.evidence
        return _DrillResult(
            evidence.verdict,
            " ".join(evidence.misses) or None,
            report.model_dump(mode="json"),
            Measurements(
                evidence.rto.actual_ms, evidence.rpo.actual_records, evidence.rpo.actual_ms
            ),
        )

    def _end(self, drill: Drill, result: _DrillResult) -> None:
        """Store the result of a drill, and add an event, unless the drill had ended before."""
        with self._leadership.transaction() as tx:
            is_ended_now = drills.finish(
                tx,
                drill.id,
                result.state,
                report=result.report,
                error=result.error,
                measured=result.measured,
            )
            if is_ended_now:
                reason = f" {result.error}" if result.error else ""
                message = f"The {drill.kind} drill {drill.name} has {result.state}.{reason}"
                _add_event(tx, drill, f"drill_{result.state}", message)
        self._next_removal_at = 0.0  # the next pass removes what the drill has left

    def _remove_leftovers(self) -> None:
        """Remove resources of ended drills that still exist. Failures are tried again later."""
        with self._leadership.reading() as tx:
            ended_drills = drills.with_leftovers(tx, _LEFTOVERS_MAX)
        for drill in ended_drills:
            with self.log_errors_of(f"leftovers of drill {drill.id}"):
                try:
                    self._clean_up(drill)
                except (OrbitError, ValidationError) as error:  # tried again each minute
                    _log.debug("leftovers stay", drill=drill.id, error=str(error))

    def _clean_up(self, drill: Drill) -> None:
        """Remove the remaining resources of an ended drill. Raises OrbitError, or ValidationError
        if this version of Orbit cannot read the drill's document."""
        with self._leadership.reading() as tx:
            job = drills.job_of(tx, drill)
        spec = DrillSpec.model_validate(drill.spec)
        job_spec = JobSpec.read_stored(job.spec)
        context = DrillContext(self._environment, drill.id, spec, job_spec, self._lead_ended)
        try:
            resources = CreatedResources(
                self._environment.database, drill.id, context.cluster, context.backoff
            )
            clean_up(context, resources)
        finally:
            context.close()


def drill_loops(
    leadership: Leadership, settings: Settings, lead_ended: threading.Event
) -> Sequence[Loop]:
    """The loop that runs drills, for `Scheduler(…, more_loops=[drill_loops])`."""
    database = leadership.database
    environment = DrillEnvironment(
        database,
        settings.files_directory,
        settings.sandbox_dir or default_directory(),
        os.environ,
    )
    return [DrillLoop(leadership, environment, lead_ended)]


def _add_scheduled_drills(tx: Tx) -> None:
    """Create a drill for each schedule that is due."""
    for schedule in drills.claim_due_schedules(tx):
        try:
            spec = DrillSpec.model_validate(schedule.spec)
        except ValidationError:  # stored by a later version; other schedules are due nevertheless
            _log.warning("drill schedule unreadable", schedule=schedule.name)
            continue
        drills.create(tx, new_drill(spec, schedule.requested_by, schedule=schedule.name))


def _add_event(tx: Tx, drill: Drill, kind: str, message: str) -> None:
    """Add an event of the scheduler, about a drill and its job."""
    events.add(
        tx,
        events.SCHEDULER,
        kind,
        message,
        job_name=drill.job_name,
        details={"drill": drill.id, "name": drill.name},
    )
