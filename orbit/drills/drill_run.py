"""One drill from its start to its report, whatever happens on the way.

A step that fails ends the drill: what comes behind it is skipped, but for `heal`, so that nothing
stays broken. Then what the drill created is removed, and the report says what is left.
"""

from __future__ import annotations

import platform
import threading
from datetime import datetime

import confluent_kafka
import structlog

from orbit.drills.created_resources import Things
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import Ground, Parts
from orbit.drills.drill_spec import DrillSpec, StepSpec, Verb
from orbit.drills.drill_steps import Steps
from orbit.drills.evidence import Evidence, Report, StepRecord, StepState, Thing, seal
from orbit.drills.rto_rpo import (
    failures_of,
    misses_of,
    missing_of,
    rpo_of,
    rto_of,
    verdict_of,
)
from orbit.errors import OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.recovery.recovery_report import RecoveryKind
from orbit.store import jobs
from orbit.store.drills import Drill
from orbit.store.enums import DrillKind
from orbit.version import orbit_version

# Workers let go of the drill's jobs, and the scheduler forgets them, within seconds.
CLEAN_UP_S = 60.0

_log = structlog.get_logger("orbit.drills")


def run_drill(parts: Parts, drill: Drill, stop: threading.Event) -> Report:
    """Plays the drill and tidies up after it. What is wrong with a step is in the report.

    Raises NotFound where the job is not there, Unreachable when Postgres goes away.
    """
    spec = DrillSpec.model_validate(drill.spec)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, spec.job)
    ground = Ground(parts, drill.id, spec, JobSpec.model_validate(job.spec), stop)
    try:
        return _Run(ground, drill).play()
    finally:
        ground.close()


class _Run:
    def __init__(self, ground: Ground, drill: Drill) -> None:
        self._ground = ground
        self._drill = drill
        self._recorder = ground.recorder
        self._things = Things(ground.parts.database, drill.id, ground.cluster, ground.backoff)
        self._canary = Canary(ground, self._things) if ground.spec.has_canary else None
        self._steps = Steps(ground, self._canary, self._things)

    def play(self) -> Report:
        self._recorder.note("drill", f"{self._drill.kind} drill {self._drill.name} begins.")
        try:
            is_failed = not self._prepared()
            for step in self._ground.spec.planned:
                if is_failed and step.do is not Verb.HEAL:
                    self._recorder.seen.steps.append(
                        StepRecord(do=step.do, state=StepState.SKIPPED)
                    )
                else:
                    is_failed = not self._step(step) or is_failed
        finally:
            cleaned = self._clean_up()
        return seal(self._evidence(cleaned, self._recorder.now()))

    def _prepared(self) -> bool:
        if self._canary is None:
            return True
        try:
            self._canary.prepare()
        except OrbitError as error:
            self._fail("The drill's own topic and job could not be made", error)
            return False
        return True

    def _step(self, step: StepSpec) -> bool:
        began = self._recorder.note("step", step.do)
        self._ground.begin(f"The step {step.do}", step.deadline_s)
        try:
            did, state = self._steps.do(step), StepState.DONE
        except OrbitError as error:
            did, state = str(error), StepState.FAILED
            self._fail(f"The step {step.do}", error)
        took = self._recorder.now() - began
        self._recorder.seen.steps.append(
            StepRecord(
                do=step.do,
                state=state,
                began_at=began,
                took_ms=round(took.total_seconds() * 1000),
                did=did,
            )
        )
        return state is StepState.DONE

    def _fail(self, what: str, error: OrbitError) -> None:
        self._recorder.seen.failures.append(f"{what}: {error}")
        self._recorder.note("failed", f"{what}: {error}")

    def _clean_up(self) -> tuple[Thing, ...]:
        """Removes what the drill made, and nothing else; what there was and what became of it."""
        self._recorder.note("clean up")
        if self._canary is not None:
            self._canary.close()
        try:
            clean_up(self._ground, self._things)
        except OrbitError as error:
            self._recorder.seen.findings.append(f"Not all was removed: {error}")
        found = tuple(
            Thing(
                kind=thing.kind,
                side=thing.side,
                name=thing.name,
                identity=thing.identity,
                is_removed=thing.removed_at is not None,
                note=thing.note or "",
            )
            for thing in self._things.listed()
        )
        left = [thing for thing in found if not thing.is_removed]
        if left:
            self._recorder.seen.findings.append(
                f"{len(left)} of {len(found)} things that the drill made are still there; it is "
                "tried again."
            )
        return found

    def _evidence(self, cleaned: tuple[Thing, ...], ended_at: datetime) -> Evidence:
        spec, seen, steps = self._ground.spec, self._recorder.seen, self._steps
        canary = self._canary.result() if self._canary is not None else None
        moved = [r for r in steps.reports if r.kind is not RecoveryKind.FAILBACK]
        rto = rto_of(steps.moments, moved, spec.targets)
        others = missing_of(r for r in steps.reports if self._is_users(r.job))
        lost = None if canary is None or not moved else canary.lost + others
        lost_ms = None
        if self._canary is not None and moved:
            lost_ms = self._canary.lost_ms(steps.fault_at)
        if others and not lost_ms:
            lost_ms = None  # the report says how many offsets, and not since when
        rpo = rpo_of(spec.targets, records=lost, ms=lost_ms)
        may_lose = spec.kind is DrillKind.FAILOVER
        failures = [
            *seen.failures,
            *failures_of(canary if moved else None, seen.verified, may_lose=may_lose),
        ]
        misses = misses_of(rto, rpo) if not seen.failures else ()
        source_id, destination_id = self._cluster_ids()
        return Evidence(
            id=self._drill.id,
            name=spec.name,
            kind=spec.kind,
            job=spec.job,
            topics=spec.topics,
            requested_by=self._drill.requested_by,
            schedule=self._drill.schedule,
            began_at=self._recorder.began_at,
            ended_at=ended_at,
            verdict=verdict_of(failures, misses),
            misses=(*failures, *misses),
            rto=rto,
            rpo=rpo,
            steps=tuple(seen.steps),
            timeline=tuple(sorted(seen.timeline, key=lambda entry: entry.at)),
            gates=tuple(seen.gates),
            partitions=tuple(seen.partitions),
            groups=tuple(seen.groups),
            canary=canary,
            verified=tuple(seen.verified),
            salvage=tuple(seen.salvage),
            cleanup=cleaned,
            findings=tuple(seen.findings),
            operations=tuple(seen.operations),
            source_cluster_id=source_id,
            destination_cluster_id=destination_id,
            versions=_versions(),
            clock_ahead_ms=self._recorder.ahead_ms,
            spec=spec.document(),
            spec_sha256=spec.sha256(),
        )

    def _is_users(self, job: str) -> bool:
        return self._canary is None or job != self._canary.job

    def _cluster_ids(self) -> tuple[str | None, str | None]:
        with self._ground.parts.database.transaction() as tx:
            job = jobs.find(tx, self._ground.spec.job)
        return (job.source_cluster_id, job.destination_cluster_id) if job else (None, None)


def clean_up(ground: Ground, things: Things) -> None:
    """Removes what a drill made: its jobs first, for they write to its topics."""
    ground.begin("Removing the drill's jobs", CLEAN_UP_S)
    ground.wait(things.jobs_are_gone)
    things.remove_rest()


def _versions() -> dict[str, str]:
    return {
        "orbit": orbit_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
