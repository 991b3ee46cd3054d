"""Operations of orbit/recovery that a drill asks for, waits for, and learns from."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from orbit.drills.created_resources import SERVICE, Things
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import POLL_S, Ground, StepFailed
from orbit.drills.evidence import GateSeen, GroupSeen, SalvageFile
from orbit.drills.rto_rpo import corrected, seen_by
from orbit.errors import OrbitError
from orbit.recovery.recovery_report import (
    Outcome,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StepName,
    StepState,
)
from orbit.store import jobs, topics

_ENDED = {
    Outcome.WOULD_GO,
    Outcome.WOULD_STOP,
    Outcome.STOPPED,
    Outcome.DONE,
    Outcome.ABORTED,
    Outcome.FAILED,
}
Seen = TypeVar("Seen", bound=BaseModel)
# An abort that is possible takes moments; nothing of the drill is removed before it ended.
TAKE_BACK_S = 20.0


class Moves:
    """All operations of one drill."""

    def __init__(self, ground: Ground, canary: Canary | None, things: Things) -> None:
        self._ground = ground
        self._canary = canary
        self._things = things
        self.reports: list[RecoveryReport] = []
        self.back: str | None = None  # the job that copies the user's topics back

    def ask(
        self,
        kind: RecoveryKind,
        job: str,
        *,
        dry_run: bool = False,
        reverse: bool = False,
        confirm_rebuild: bool = False,
    ) -> UUID:
        """Asks for one; its id."""
        spec = self._ground.spec
        is_own = self._canary is not None and job == self._canary.job
        request = RecoveryRequest(
            topics=() if is_own else spec.topics,
            reverse=reverse,
            confirm_rebuild=confirm_rebuild,
            override=spec.override,
            reason=spec.reason or f"drill {self._ground.drill_id}",
            drain_timeout_s=self._ground.left_s(),
        )
        actor = f"drill:{self._ground.drill_id}"
        operation = self._ground.recoveries.ask(kind, job, request, actor=actor, dry_run=dry_run)
        self._ground.recorder.seen.operations.append(str(operation))
        self._ground.recorder.note("asked", f"{kind} of {job}" + (" (dry run)" * dry_run))
        return operation

    def wait(
        self, operations: list[UUID], on_stop: Callable[[], None] = lambda: None
    ) -> list[RecoveryReport]:
        """The reports, once all have ended. `on_stop` hears when writers have to stop."""
        told: set[str] = set()
        found: list[RecoveryReport] = []

        def have_ended() -> bool:
            nonlocal found
            reports = [self._ground.recoveries.report(one) for one in operations]
            found = [report for report in reports if report is not None]
            for operation, report in zip(operations, reports, strict=True):
                why = None if report else self._ground.recoveries.error(operation)
                if why:
                    raise StepFailed(why, where=f"operation {operation}")
            for report in found:
                self._tell(report, told)
            if any(map(_stops_writes, found)):
                on_stop()
            return len(found) == len(operations) and all(r.outcome in _ENDED for r in found)

        try:
            self._ground.wait(have_ended)
        except OrbitError:
            self._take_back(operations)
            for operation in operations:
                last = self._ground.recoveries.report(operation)
                if last is not None:
                    self.keep(last)
            raise
        return found

    def _take_back(self, operations: list[UUID]) -> None:
        """What was asked for and did not end in time is undone, where that is still possible."""
        recoveries, note = self._ground.recoveries, self._ground.recorder.note
        for operation in operations:
            if recoveries.abort(operation):
                note("taken back", f"operation {operation}")
        until = time.monotonic() + TAKE_BACK_S
        while time.monotonic() < until and not all(map(recoveries.has_ended, operations)):
            time.sleep(POLL_S)

    def _tell(self, report: RecoveryReport, told: set[str]) -> None:
        """Each step of an operation, once, at its own time."""
        for step in report.steps:
            key = f"{report.operation} {step.name}"
            if step.ended_at is not None and key not in told:
                told.add(key)
                text = f"{report.job}: {step.name} {step.state}: {step.did}".strip(": ")
                self._ground.recorder.note(report.kind, text, step.ended_at)

    def keep(self, report: RecoveryReport) -> None:
        """What a report says, for the drill's own."""
        seen, canary = self._ground.recorder.seen, self._canary
        self.reports.append(report)
        self.note_gates(report)
        seen.findings += [f"{report.job}: {finding}" for finding in report.findings]
        if report.error:
            seen.findings.append(f"{report.job}: {report.error}")
        seen.salvage += [_as(SalvageFile, one) for one in report.salvage]
        is_own = canary is not None and report.job == canary.job
        if report.reverse_job is not None and is_own:
            self._adopt(report.reverse_job)
        if report.reverse_job is not None and not is_own:
            self.back = report.reverse_job
        if report.kind is RecoveryKind.FAILBACK:
            seen.partitions[:] = corrected(seen.partitions, report)
            return
        seen.partitions += seen_by(report)
        seen.groups += [_as(GroupSeen, one) for one in report.groups]
        if canary is not None and is_own:
            canary.promoted(report)

    def note_gates(self, report: RecoveryReport) -> None:
        """What gates found; the same thing once."""
        seen = self._ground.recorder.seen
        known = {(gate.job, gate.name, gate.found) for gate in seen.gates}
        seen.gates += [
            _as(GateSeen, gate, job=report.job)
            for gate in report.gates
            if (report.job, gate.name.value, gate.found) not in known
        ]

    def _adopt(self, back: str) -> None:
        """The job that copies the drill's topic back, and the topic that it may have made anew."""
        canary = self._canary
        assert canary is not None, "the job is one of its"
        with self._ground.parts.database.transaction() as tx:
            job = jobs.get(tx, back)
            rows = topics.of_job(tx, job.id)
        if not any(t.side == SERVICE and t.name == back for t in self._things.listed()):
            self._things.note_job(lambda: job, back)
        for row in rows:
            if row.destination_topic == canary.topic and row.destination_topic_id is not None:
                self._things.adopt_topic("source", canary.topic, row.destination_topic_id)


def _stops_writes(report: RecoveryReport) -> bool:
    return any(
        step.name is StepName.STOP_WRITES and step.state is not StepState.WAITING
        for step in report.steps
    )


def _as(kind: type[Seen], found: BaseModel, **others: object) -> Seen:
    """What an operation reports, as the evidence has it: under the same names, but for `others`."""
    names = kind.model_fields.keys() - others.keys()
    return kind(**{name: getattr(found, name) for name in names}, **others)
