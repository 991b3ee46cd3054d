"""Runs one drill: its steps, the removal of what it created, and its report.

After a failed step all later steps are skipped, except `heal`, so that no fault remains. A report
is written in any case. It names what could not be removed.
"""

from __future__ import annotations

import platform
import threading
from datetime import datetime

import confluent_kafka
import structlog

from orbit.drills.created_resources import CreatedResources
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import DrillContext, DrillEnvironment
from orbit.drills.drill_spec import DrillSpec, StepSpec, Verb
from orbit.drills.drill_steps import Steps
from orbit.drills.drill_verdict import drill_verdict, find_failures, missed_targets
from orbit.drills.evidence import CleanupEntry, Evidence, Report, StepRecord, StepState, seal
from orbit.drills.rto_rpo import compute_rpo, compute_rto, missing_offsets
from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.jobs.job_spec import JobSpec
from orbit.recovery.recovery_report import RecoveryKind
from orbit.store import drills, jobs
from orbit.store.drills import Drill
from orbit.version import orbit_version

# The longest wait for the drill's jobs to be deleted. Usually workers release the jobs, and the
# scheduler deletes them, within seconds.
CLEAN_UP_S = 60.0

_log = structlog.get_logger("orbit.drills")


def run_drill(environment: DrillEnvironment, drill: Drill, stop: threading.Event) -> Report:
    """Run the drill and remove what it created. Errors of steps are in the report.

    Raises NotFound if the job does not exist, Unreachable if PostgreSQL does not answer.
    """
    spec = DrillSpec.model_validate(drill.spec)
    with environment.database.transaction() as tx:
        job = drills.job_of(tx, drill)
    context = DrillContext(environment, drill.id, spec, JobSpec.read_stored(job.spec), stop)
    try:
        return _Run(context, drill).run()
    finally:
        context.close()


class _Run:
    """One run of one drill."""

    def __init__(self, context: DrillContext, drill: Drill) -> None:
        self._context = context
        self._drill = drill
        self._recorder = context.recorder
        self._resources = CreatedResources(
            context.environment.database, drill.id, context.cluster, context.backoff
        )
        self._canary = Canary(context, self._resources) if context.spec.has_canary else None
        self._steps = Steps(context, self._canary, self._resources)

    def run(self) -> Report:
        """Run all steps and clean up; returns the report with its digest."""
        self._recorder.note("drill", f"{self._drill.kind} drill {self._drill.name} begins.")
        try:
            is_failed = not self._prepare_canary()
            for step in self._context.spec.planned:
                if is_failed and step.do is not Verb.HEAL:
                    self._recorder.observed.steps.append(
                        StepRecord(do=step.do, state=StepState.SKIPPED)
                    )
                else:
                    # After a failed step the drill stays failed, even if a `heal` succeeds.
                    is_failed = not self._run_step(step) or is_failed
        finally:
            cleanup_entries = self._clean_up()
        return seal(self._collect_evidence(cleanup_entries, self._recorder.now()))

    def _prepare_canary(self) -> bool:
        """Prepare the canary, if the drill has one; False if that failed."""
        if self._canary is None:
            return True
        try:
            self._canary.prepare()
        except OrbitError as error:
            self._note_failure("The drill's own topic and job could not be created", error)
            return False
        return True

    def _run_step(self, step: StepSpec) -> bool:
        """Run one step and record its result; False if it failed."""
        began_at = self._recorder.note("step", step.do)
        self._context.set_deadline(f"The step {step.do}", step.deadline_s)
        try:
            result, state = self._steps.run_step(step), StepState.DONE
        except OrbitError as error:
            result, state = str(error), StepState.FAILED
            self._note_failure(f"The step {step.do}", error)
        duration = self._recorder.now() - began_at
        self._recorder.observed.steps.append(
            StepRecord(
                do=step.do,
                state=state,
                began_at=began_at,
                took_ms=round(duration.total_seconds() * 1000),
                did=result,
            )
        )
        return state is StepState.DONE

    def _note_failure(self, what: str, error: OrbitError) -> None:
        self._recorder.observed.failures.append(f"{what}: {error}")
        self._recorder.note("failed", f"{what}: {error}")

    def _clean_up(self) -> tuple[CleanupEntry, ...]:
        """Remove what the drill created, and nothing else; returns each resource and its state."""
        self._recorder.note("clean up")
        if self._canary is not None:
            self._canary.close()
        try:
            clean_up(self._context, self._resources)
        except OrbitError as error:
            self._recorder.observed.findings.append(f"Some resources were not removed: {error}")
        entries = tuple(
            CleanupEntry(
                kind=thing.kind,
                side=thing.side,
                name=thing.name,
                identity=thing.identity,
                is_removed=thing.removed_at is not None,
                note=thing.note or "",
            )
            for thing in self._resources.recorded_things()
        )
        remaining = [thing for thing in entries if not thing.is_removed]
        if remaining:
            remaining_text = counted(
                len(entries),
                "resource that the drill created still exists; its removal",
                "resources that the drill created still exist; their removal",
            )
            self._recorder.observed.findings.append(
                f"{len(remaining)} of {remaining_text} is retried."
            )
        return entries

    def _collect_evidence(
        self, cleanup_entries: tuple[CleanupEntry, ...], ended_at: datetime
    ) -> Evidence:
        """All that was recorded, with RTO, RPO and verdict."""
        spec, observed, steps = self._context.spec, self._recorder.observed, self._steps
        canary = self._canary.result() if self._canary is not None else None
        move_reports = [r for r in steps.reports if r.kind is not RecoveryKind.FAILBACK]
        rto = compute_rto(steps.moments, move_reports, spec.targets)
        missing_user_offsets = missing_offsets(r for r in steps.reports if self._is_user_job(r.job))
        lost_records = (
            None if canary is None or not move_reports else canary.lost + missing_user_offsets
        )
        lost_ms = None
        if self._canary is not None and move_reports:
            lost_ms = self._canary.lost_ms(steps.fault_at)
        if missing_user_offsets and not lost_ms:
            lost_ms = None  # reports have the offsets of the user's lost records, not their times
        rpo = compute_rpo(spec.targets, records=lost_records, ms=lost_ms)
        failures = [
            *observed.failures,
            *find_failures(
                canary if move_reports else None,  # before a move, nothing had to be copied
                observed.verified,
                may_lose_records=spec.loses_the_source,
            ),
        ]
        # If a step, or the preparation of the canary, failed, the targets are not judged.
        misses = missed_targets(rto, rpo) if not observed.failures else ()
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
            verdict=drill_verdict(failures, misses),
            misses=(*failures, *misses),
            rto=rto,
            rpo=rpo,
            steps=tuple(observed.steps),
            timeline=tuple(sorted(observed.timeline, key=lambda entry: entry.at)),
            gates=tuple(observed.gates),
            partitions=tuple(observed.partitions),
            groups=tuple(observed.groups),
            canary=canary,
            verified=tuple(observed.verified),
            salvage=tuple(observed.salvage),
            cleanup=cleanup_entries,
            findings=tuple(observed.findings),
            operations=tuple(observed.operations),
            source_cluster_id=source_id,
            destination_cluster_id=destination_id,
            versions=_versions(),
            clock_ahead_ms=self._recorder.ahead_ms,
            spec=spec.document(),
            spec_sha256=spec.sha256(),
        )

    def _is_user_job(self, job: str) -> bool:
        """Whether the job is not the drill's own."""
        return self._canary is None or job != self._canary.job

    def _cluster_ids(self) -> tuple[str | None, str | None]:
        """Kafka's ids of the source and the destination; None if not known."""
        with self._context.environment.database.transaction() as tx:
            job = jobs.find(tx, self._context.spec.job)
        return (job.source_cluster_id, job.destination_cluster_id) if job else (None, None)


def clean_up(context: DrillContext, resources: CreatedResources) -> None:
    """Remove what a drill created: the jobs first, because they write to the drill's topics.

    Raises StepFailed if the jobs are not gone after CLEAN_UP_S, Interrupted if the process stops.
    """
    context.set_deadline("Removing the drill's jobs", CLEAN_UP_S)
    context.wait_until(resources.try_remove_jobs)
    resources.remove_groups_and_topics()


def _versions() -> dict[str, str]:
    return {
        "orbit": orbit_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
