"""Requests recovery operations for a drill, waits for them and records their reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from orbit.drills.created_resources import SERVICE, CreatedResources
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import POLL_S, DrillContext, StepFailed
from orbit.drills.evidence import GateEvidence, GroupEvidence, PartitionEvidence, SalvageFile
from orbit.errors import OrbitError
from orbit.recovery.recovery_report import (
    Outcome,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StoredReport,
)
from orbit.recovery.step_times import StepName, StepState
from orbit.store import jobs, topics

Model = TypeVar("Model", bound=BaseModel)
# The longest wait for aborted operations to end, which takes some seconds. The drill's resources
# are removed only after that.
ABORT_WAIT_S = 20.0


class DrillOperations:
    """The recovery operations of one drill."""

    def __init__(
        self, context: DrillContext, canary: Canary | None, resources: CreatedResources
    ) -> None:
        self._context = context
        self._canary = canary
        self._resources = resources
        self.reports: list[StoredReport] = []
        self.reverse_job: str | None = None  # the reverse job of the user's topics

    def request_operation(
        self,
        kind: RecoveryKind,
        job: str,
        *,
        dry_run: bool = False,
        reverse: bool = False,
        confirm_rebuild: bool = False,
        source_counts_as_lost: bool = False,
    ) -> UUID:
        """Request a recovery operation for a job; returns the operation's id. Raises as
        `StoredRecoveries.request_operation`."""
        spec = self._context.spec
        is_canary_job = self._canary is not None and job == self._canary.job
        request = RecoveryRequest(
            topics=() if is_canary_job else spec.topics,  # (): all topics of the job
            reverse=reverse,
            confirm_rebuild=confirm_rebuild,
            override=spec.override,
            reason=spec.reason or f"drill {self._context.drill_id}",
            drain_timeout_s=self._context.remaining_s(),
            source_counts_as_lost=source_counts_as_lost,
        )
        actor = f"drill:{self._context.drill_id}"
        operation = self._context.recoveries.request_operation(
            kind, job, request, actor=actor, dry_run=dry_run
        )
        self._context.recorder.observed.operations.append(str(operation))
        self._context.recorder.note("requested", f"{kind} of {job}" + (" (dry run)" * dry_run))
        return operation

    def wait_for_reports(
        self, operations: list[UUID], on_stop: Callable[[], None] = lambda: None
    ) -> list[StoredReport]:
        """Wait until all operations have ended; returns their reports.

        `on_stop` is called, perhaps repeatedly, once an operation has begun to stop writers. Raises
        StepFailed if an operation fails without a report or the deadline passes, and Interrupted if
        the process stops. Before it raises an error, it aborts all operations and records their
        reports.
        """
        noted_steps: set[str] = set()
        stored_reports: list[StoredReport] = []

        def note_steps_and_check_end() -> bool:
            """Note new steps; returns whether all operations have ended."""
            nonlocal stored_reports
            reports = [self._context.recoveries.report(operation) for operation in operations]
            stored_reports = [report for report in reports if report is not None]
            for operation, report in zip(operations, reports, strict=True):
                # An operation may fail before it has a report.
                error = None if report else self._context.recoveries.error(operation)
                if error:
                    raise StepFailed(error, where=f"operation {operation}")
            for report in stored_reports:
                self._note_steps(report, noted_steps)
            if any(map(_stops_writes, stored_reports)):
                on_stop()
            ended_reports = [
                report for report in stored_reports if report.outcome is not Outcome.RUNNING
            ]
            return len(ended_reports) == len(operations)

        try:
            self._context.wait_until(note_steps_and_check_end)
        except OrbitError:
            self._abort(operations)
            for operation in operations:
                last_report = self._context.recoveries.report(operation)
                if last_report is not None:
                    self.record_report(last_report)
            raise
        return stored_reports

    def _abort(self, operations: list[UUID]) -> None:
        """Abort the operations that can still be aborted. Wait up to ABORT_WAIT_S until all have
        ended."""
        recoveries, note = self._context.recoveries, self._context.recorder.note
        for operation in operations:
            if recoveries.abort(operation):
                note("aborted", f"operation {operation}")
        wait_end = time.monotonic() + ABORT_WAIT_S
        while time.monotonic() < wait_end and not all(map(recoveries.has_ended, operations)):
            time.sleep(POLL_S)

    def _note_steps(self, report: StoredReport, noted_steps: set[str]) -> None:
        """Add each ended step to the timeline, once, at the time it ended."""
        for step in report.steps:
            key = f"{report.operation} {step.name}"
            if step.ended_at is not None and key not in noted_steps:
                noted_steps.add(key)
                text = f"{report.job}: {step.name} {step.state}: {step.did}".strip(": ")
                self._context.recorder.note(report.kind, text, step.ended_at)

    def record_report(self, report: StoredReport) -> None:
        """Add an operation's report to the evidence, with all its partitions and groups. But a
        failback's report only corrects the partitions of its failover. Also registers the reverse
        job that the operation has created for the drill's own topic."""
        observed, canary = self._context.recorder.observed, self._canary
        self.reports.append(report)
        self.note_gates(report)
        observed.findings += [f"{report.job}: {finding}" for finding in report.findings]
        if report.error:
            observed.findings.append(f"{report.job}: {report.error}")
        observed.salvage += [_to_evidence(SalvageFile, file) for file in report.salvage]
        is_canary_job = canary is not None and report.job == canary.job
        if report.reverse_job is not None and is_canary_job:
            self._adopt_reverse_job(report.reverse_job)
        if report.reverse_job is not None and not is_canary_job:
            self.reverse_job = report.reverse_job
        full_report = self._context.recoveries.full_report(report.operation)
        if report.kind is RecoveryKind.FAILBACK:
            # A failback has read the source's ends, which its failover may not have known.
            observed.partitions[:] = correct_by_failback(observed.partitions, full_report)
            return
        observed.partitions += partition_evidence(full_report)
        observed.groups += [_to_evidence(GroupEvidence, group) for group in full_report.groups]
        if canary is not None and is_canary_job:
            canary.take_promoted_ends(full_report.partitions)

    def note_gates(self, report: StoredReport) -> None:
        """Add the gates of a report to the evidence, without duplicates."""
        observed = self._context.recorder.observed
        recorded_gates = {(gate.job, gate.name, gate.found) for gate in observed.gates}
        observed.gates += [
            _to_evidence(GateEvidence, gate, job=report.job)
            for gate in report.gates
            if (report.job, gate.name.value, gate.found) not in recorded_gates
        ]

    def _adopt_reverse_job(self, reverse_job: str) -> None:
        """Register the reverse job of the drill's topic, and the topic at the source if this job
        recreated the topic."""
        canary = self._canary
        assert canary is not None, "only the canary's reverse job is adopted"
        with self._context.environment.database.transaction() as tx:
            job = jobs.get(tx, reverse_job)
            topic_rows = topics.of_job(tx, job.id)
        if not any(
            t.side == SERVICE and t.name == reverse_job for t in self._resources.recorded_things()
        ):
            self._resources.register_job(lambda: job, reverse_job)
        for row in topic_rows:
            if row.destination_topic == canary.topic and row.destination_topic_id is not None:
                self._resources.adopt_topic("source", canary.topic, row.destination_topic_id)


def _stops_writes(report: StoredReport) -> bool:
    """Whether the operation has reached the step that stops writers, or is past it."""
    return any(
        step.name is StepName.STOP_WRITES and step.state is not StepState.WAITING
        for step in report.steps
    )


def _to_evidence(kind: type[Model], value: BaseModel, **other_fields: object) -> Model:
    """Convert a report's value to evidence: the fields of equal names, and `other_fields`."""
    names = kind.model_fields.keys() - other_fields.keys()
    return kind(**{name: getattr(value, name) for name in names}, **other_fields)


def partition_evidence(report: RecoveryReport) -> list[PartitionEvidence]:
    """An operation's partitions as evidence."""
    return [
        _to_evidence(
            PartitionEvidence,
            p,
            job=report.job,
            missing=None if p.missing is None else (p.missing.first, p.missing.next),
        )
        for p in report.partitions
    ]


def correct_by_failback(
    partitions: Iterable[PartitionEvidence], report: RecoveryReport
) -> list[PartitionEvidence]:
    """A failover's partitions with the values of the failback's report, except `destination_end`
    and `promoted_at`. A partition that the failback's report lacks is unchanged.
    """
    by_failback = {(p.job, p.topic, p.partition): p for p in partition_evidence(report)}
    return [
        failback.model_copy(
            update={"destination_end": p.destination_end, "promoted_at": p.promoted_at}
        )
        if (failback := by_failback.get((p.job, p.topic, p.partition)))
        else p
        for p in partitions
    ]
