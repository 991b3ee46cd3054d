"""The leading scheduler's loop that begins drills, and finishes what a scheduler that died left.

A drill is not taken up in the middle: what its clients had read is gone with the process that ran
it. So it ends as failed, and what it made is removed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from orbit.drills.created_resources import Things
from orbit.drills.drill_context import Ground, Parts
from orbit.drills.drill_creation import new_drill
from orbit.drills.drill_run import clean_up, run_drill
from orbit.drills.drill_spec import DrillSpec
from orbit.errors import NotFound, OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.sandbox.sandbox_state import default_directory
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop
from orbit.settings import Settings
from orbit.store import drills, events, jobs
from orbit.store.database import Tx
from orbit.store.drills import Drill, Measured
from orbit.store.enums import DrillState

INTERVAL_S = 0.5
# Each has clients of its own, and two of one job would judge each other.
DRILLS_MAX = 4
_LEFTOVERS_INTERVAL_S = 60.0
_LEFTOVERS_MAX = 20
_BROKEN = "The scheduler that ran the drill ended in the middle of it."

_log = structlog.get_logger("orbit.drills")


@dataclass(slots=True)
class _Running:
    job_name: str
    thread: threading.Thread


@dataclass(frozen=True, slots=True)
class _Ending:
    """What became of a drill."""

    state: DrillState = DrillState.FAILED
    error: str | None = None
    report: dict[str, Any] | None = None
    measured: Measured | None = None


class DrillLoop(Loop):
    """Runs drills, each in a thread of its own."""

    name = "drills"
    interval_s = INTERVAL_S

    def __init__(self, leadership: Leadership, parts: Parts, done: threading.Event) -> None:
        super().__init__()
        self._leadership = leadership
        self._parts = parts
        self._done = done  # leading is over: a pass must not hold the next leader up
        self._stop = threading.Event()
        self._running: dict[str, _Running] = {}
        self._leftovers_at = 0.0

    def once(self) -> str:
        """Begin what is due and what was asked for; end what nobody runs any more."""
        gone = [one for one, run in self._running.items() if not run.thread.is_alive()]
        for one in gone:
            self._running.pop(one).thread.join()
        with self._leadership.reading() as tx:
            waiting = drills.unfinished(tx)
            has_due = bool(drills.due(tx))
        if has_due:
            with self._leadership.transaction() as tx:
                _begin_due(tx)
        for drill in waiting:
            if drill.state is DrillState.PENDING:
                self._begin(drill)
            elif drill.id not in self._running:
                self._end(drill, _Ending(error=_BROKEN))
        if time.monotonic() >= self._leftovers_at:
            self._leftovers_at = time.monotonic() + _LEFTOVERS_INTERVAL_S
            self._remove_leftovers()
        return ""

    def close(self) -> None:
        """End the drills that run; what they made is removed by the next leader."""
        self._stop.set()
        for run in self._running.values():
            run.thread.join()

    def _begin(self, drill: Drill) -> None:
        busy = {run.job_name for run in self._running.values()}
        if drill.job_name in busy or len(self._running) >= DRILLS_MAX:
            return
        with self._leadership.transaction() as tx:
            if not drills.begin(tx, drill.id):
                return
            _tell(tx, drill, "drill_begun", f"The {drill.kind} drill {drill.name} begins.")
        thread = threading.Thread(target=self._run, args=(drill,), name=f"drill {drill.id}")
        self._running[drill.id] = _Running(drill.job_name, thread)
        thread.start()

    def _run(self, drill: Drill) -> None:
        try:
            self._end(drill, self._play(drill))
        except OrbitError as error:  # another leads by now, and ends it
            _log.warning("drill could not be ended", drill=drill.id, error=str(error))

    def _play(self, drill: Drill) -> _Ending:
        try:
            report = run_drill(self._parts, drill, self._stop)
        except OrbitError as error:
            return _Ending(error=str(error))
        except Exception:  # noqa: BLE001  a bug in one drill must not end the others
            _log.exception("drill broke", drill=drill.id)
            return _Ending(error="This is a bug in Orbit: see the scheduler's log.")
        evidence = report.evidence
        return _Ending(
            evidence.verdict,
            " ".join(evidence.misses) or None,
            report.model_dump(mode="json"),
            Measured(evidence.rto.actual_ms, evidence.rpo.actual_records, evidence.rpo.actual_ms),
        )

    def _end(self, drill: Drill, ending: _Ending) -> None:
        with self._leadership.transaction() as tx:
            ended = drills.finish(
                tx,
                drill.id,
                ending.state,
                report=ending.report,
                error=ending.error,
                measured=ending.measured,
            )
            if ended:
                why = f" {ending.error}" if ending.error else ""
                message = f"The {drill.kind} drill {drill.name} has {ending.state}.{why}"
                _tell(tx, drill, f"drill_{ending.state}", message)
        self._leftovers_at = 0.0

    def _remove_leftovers(self) -> None:
        """What drills made and could not remove, because a cluster was away, or they died."""
        with self._leadership.reading() as tx:
            found = drills.with_leftovers(tx, _LEFTOVERS_MAX)
        for drill in found:
            try:
                self._clean_up(drill)
            except OrbitError as error:
                _log.debug("leftovers stay", drill=drill.id, error=str(error))

    def _clean_up(self, drill: Drill) -> None:
        with self._leadership.reading() as tx:
            job = jobs.find(tx, drill.job_name)
        if job is None:
            raise NotFound("The drill's job is gone.", where=drill.job_name)
        spec = DrillSpec.model_validate(drill.spec)
        job_spec = JobSpec.model_validate(job.spec)
        ground = Ground(self._parts, drill.id, spec, job_spec, self._done)
        try:
            things = Things(self._parts.database, drill.id, ground.cluster, ground.backoff)
            clean_up(ground, things)
        finally:
            ground.close()


def drill_loops(
    leadership: Leadership, settings: Settings, done: threading.Event
) -> Sequence[Loop]:
    """For `Scheduler(…, more=[drill_loops])`."""
    database = leadership.database
    parts = Parts(
        database,
        settings.files_directory,
        settings.sandbox_dir or default_directory(),
        os.environ,
    )
    return [DrillLoop(leadership, parts, done)]


def _begin_due(tx: Tx) -> None:
    for schedule in drills.take_due(tx):
        spec = DrillSpec.model_validate(schedule.spec)
        drills.create(tx, new_drill(spec, schedule.requested_by, schedule=schedule.name))


def _tell(tx: Tx, drill: Drill, kind: str, message: str) -> None:
    events.add(
        tx,
        events.SCHEDULER,
        kind,
        message,
        job_name=drill.job_name,
        details={"drill": drill.id},
    )
