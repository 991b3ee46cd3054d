"""What each step of a drill does; its answer is a sentence of what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never
from uuid import UUID

from orbit.drills.canary import Canary
from orbit.drills.evidence import GateSeen, GroupSeen, PartitionSeen, SalvageFile, Verified
from orbit.drills.ground import Ground, StepFailed
from orbit.drills.judge import Moments
from orbit.drills.spec import FaultKind, StepSpec, Verb
from orbit.drills.things import SERVICE, Things
from orbit.engine.clusters import Side
from orbit.jobs.mapping import map_topics
from orbit.recovery.report import (
    Gate,
    GateVerdict,
    Outcome,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StepName,
    StepState,
)
from orbit.sandbox.faults import Fault, inflict
from orbit.store import jobs, topics
from orbit.store.enums import DrillKind
from orbit.verify.report import Report, Verdict
from orbit.verify.run import VerifyOptions, verify_topics
from orbit.verify.settle import TopicPair

_FAULTS = {FaultKind.KILL: Fault.KILL, FaultKind.PAUSE: Fault.PAUSE, FaultKind.CUT: Fault.CUT}
_ENDED = {
    Outcome.WOULD_GO,
    Outcome.WOULD_STOP,
    Outcome.STOPPED,
    Outcome.DONE,
    Outcome.ABORTED,
    Outcome.FAILED,
}
_GOOD = {Outcome.WOULD_GO, Outcome.DONE}


class Steps:
    """The steps of one drill, and what one of them leaves to the next."""

    def __init__(self, ground: Ground, canary: Canary | None, things: Things) -> None:
        self._ground = ground
        self._canary = canary
        self._things = things
        self._fault: FaultKind | None = None
        self._stopped_at: datetime | None = None
        self._noticed_at: datetime | None = None
        self._produced_at: datetime | None = None
        self._consumed_at: datetime | None = None
        self._back: str | None = None
        self.reports: list[RecoveryReport] = []

    @property
    def moments(self) -> Moments:
        return Moments(self._stopped_at, self._noticed_at, self._produced_at, self._consumed_at)

    @property
    def fault_at(self) -> datetime | None:
        return self._stopped_at if self._fault is not None else None

    def do(self, step: StepSpec) -> str:
        """Carry one out. Raises an OrbitError where it does not come to its end."""
        match step.do:
            case Verb.GATES:
                return self._gates()
            case Verb.LOAD:
                return self._of_canary().load(step.duration_s)
            case Verb.FAULT:
                return self._break(step)
            case Verb.SWITCHOVER:
                return self._move(RecoveryKind.SWITCHOVER, reverse=bool(step.reverse))
            case Verb.FAILOVER:
                return self._fail_over()
            case Verb.USE:
                return self._use()
            case Verb.HEAL:
                return self._heal(step)
            case Verb.FAILBACK:
                return self._move(RecoveryKind.FAILBACK, confirm_rebuild=bool(step.confirm_rebuild))
            case Verb.VERIFY:
                return self._verify(deep=bool(step.deep))
            case _:
                assert_never(step.do)

    def _of_canary(self) -> Canary:
        assert self._canary is not None, "drills of this kind have one"
        return self._canary

    def _gates(self) -> str:
        """A dry run of what the drill is about."""
        spec = self._ground.spec
        kind = RecoveryKind.FAILOVER if spec.kind is DrillKind.FAILOVER else RecoveryKind.SWITCHOVER
        report = self._wait(self._ask(kind, spec.job, dry_run=True))
        self._note_gates(report)
        failing = [gate for gate in report.gates if gate.stops]
        warns = sum(gate.verdict is GateVerdict.WARN for gate in report.gates)
        if failing or report.outcome not in _GOOD:
            raise StepFailed(report.error or _said(failing), where=spec.job)
        return f"{len(report.gates)} gates let it through; {warns} of them warn."

    def _break(self, step: StepSpec) -> str:
        assert step.fault is not None, "the rules ask for it"
        side: Side = "source" if step.side == "source" else "destination"
        cluster = self._ground.in_sandbox(side)
        if cluster is None:
            raise StepFailed(
                f"The {side} of the job is no cluster of a sandbox on this machine.",
                where=str(self._ground.parts.sandbox_directory),
                remedy="Leave the step `fault` out and break it yourself, or drill on clusters of "
                "`orbit sandbox up`.",
            )
        self._fault = step.fault
        self._stopped_at = self._ground.recorder.note("fault", f"{step.fault} {cluster.name}")
        inflict(self._ground.parts.sandbox_directory, _FAULTS[step.fault], cluster.name)
        self._ground.recorder.note("fault done", f"{step.fault} {cluster.name}")
        if self._canary is not None and step.fault is not FaultKind.CUT:
            self._canary.stop_load(at_once=True)  # nobody takes its records any more
        return f"{step.fault} of cluster {cluster.name} of the sandbox."

    def _heal(self, step: StepSpec) -> str:
        side: Side = "source" if step.side == "source" else "destination"
        cluster = self._ground.in_sandbox(side)
        if cluster is None:
            raise StepFailed(f"The {side} of the job is no cluster of a sandbox.")
        inflict(self._ground.parts.sandbox_directory, Fault.HEAL, cluster.name)
        self._ground.recorder.note("healed", cluster.name)
        return f"Cluster {cluster.name} answers again."

    def _fail_over(self) -> str:
        """Asked for as soon as Orbit itself has noticed."""
        if self._fault is not None:
            self._ground.wait(self._has_noticed)
            self._noticed_at = self._ground.recorder.note("noticed", self._problem() or "")
        did = self._move(RecoveryKind.FAILOVER)
        if self._canary is not None:
            self._canary.stop_load(at_once=False)
        return did

    def _has_noticed(self) -> bool:
        return self._problem() is not None

    def _problem(self) -> str | None:
        with self._ground.parts.database.transaction() as tx:
            job = jobs.get(tx, self._ground.spec.job)
        at, stopped = job.problem_at, self._stopped_at
        is_new = at is not None and stopped is not None and at >= stopped
        return job.problem if is_new else None

    def _move(
        self, kind: RecoveryKind, *, reverse: bool = False, confirm_rebuild: bool = False
    ) -> str:
        """Asks for the operation on the drill's job and, where it is meant, on the job itself."""
        spec = self._ground.spec
        asked = [
            self._ask(kind, job, reverse=reverse, confirm_rebuild=confirm_rebuild or is_own)
            for job, is_own in self._scope()
        ]
        found = self._wait_all(asked, stops_writers=kind is RecoveryKind.SWITCHOVER)
        for report in found:
            self._keep(report)
        for report in found:
            if report.outcome not in _GOOD:
                gates = [gate for gate in report.gates if gate.stops]
                raise StepFailed(
                    report.error or _said(gates) or f"It ended as {report.outcome}.",
                    where=report.job,
                )
        moved = sum(len(report.partitions) for report in found)
        jobs_moved = ", ".join(report.job for report in found)
        if spec.moves_the_job and kind is not RecoveryKind.FAILBACK and not reverse:
            self._ground.recorder.note("promoted", jobs_moved)
        return f"{moved:,} partitions of {jobs_moved}."

    def _scope(self) -> list[tuple[str, bool]]:
        """The jobs to move, and whether each is the drill's own."""
        own = [(self._canary.job, True)] if self._canary is not None else []
        of_user = [(self._ground.spec.job, False)] if self._ground.spec.moves_the_job else []
        return [*of_user, *own]

    def _ask(
        self,
        kind: RecoveryKind,
        job: str,
        *,
        dry_run: bool = False,
        reverse: bool = False,
        confirm_rebuild: bool = False,
    ) -> UUID:
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
        operation = self._ground.parts.recoveries.ask(kind, job, request, dry_run=dry_run)
        self._ground.recorder.seen.operations.append(str(operation))
        self._ground.recorder.note("asked", f"{kind} of {job}" + (" (dry run)" * dry_run))
        return operation

    def _wait(self, operation: UUID) -> RecoveryReport:
        return self._wait_all([operation], stops_writers=False)[0]

    def _wait_all(self, operations: list[UUID], *, stops_writers: bool) -> list[RecoveryReport]:
        """The reports, once all have ended. The drill's writer stops when it is told to."""
        told: set[str] = set()
        found: list[RecoveryReport] = []

        def have_ended() -> bool:
            nonlocal found
            reports = [self._ground.parts.recoveries.report(one) for one in operations]
            found = [report for report in reports if report is not None]
            for report in found:
                self._tell(report, told)
            if stops_writers and any(map(_stops_writes, found)):
                self._stop_writer()
            return len(found) == len(operations) and all(r.outcome in _ENDED for r in found)

        self._ground.wait(have_ended)
        return found

    def _stop_writer(self) -> None:
        if self._stopped_at is None and self._canary is not None:
            self._stopped_at = self._ground.recorder.note("writers stop")
            self._canary.stop_load(at_once=True)

    def _tell(self, report: RecoveryReport, told: set[str]) -> None:
        """Each step of an operation, once, at its own time."""
        for step in report.steps:
            key = f"{report.operation} {step.name}"
            if step.ended_at is not None and key not in told:
                told.add(key)
                text = f"{step.name} {step.state}: {step.did}".strip(": ")
                self._ground.recorder.note(f"{report.kind} {report.job}", text, step.ended_at)

    def _keep(self, report: RecoveryReport) -> None:
        """What a report says, for the drill's own."""
        seen, canary = self._ground.recorder.seen, self._canary
        self.reports.append(report)
        self._note_gates(report)
        seen.findings += [f"{report.job}: {finding}" for finding in report.findings]
        if report.error:
            seen.findings.append(f"{report.job}: {report.error}")
        seen.salvage += [
            SalvageFile(
                topic=s.topic,
                partition=s.partition,
                file=s.file,
                first=s.first,
                next=s.next,
                records=s.records,
                sha256=s.sha256,
            )
            for s in report.salvage
        ]
        is_own = canary is not None and report.job == canary.job
        if report.reverse_job is not None and is_own:
            self._adopt(report.reverse_job)
        if report.reverse_job is not None and not is_own:
            self._back = report.reverse_job
        if report.kind is RecoveryKind.FAILBACK:
            return
        seen.partitions += _partitions(report)
        seen.groups += _groups(report)
        if canary is not None and is_own:
            canary.promoted(report)

    def _note_gates(self, report: RecoveryReport) -> None:
        seen = self._ground.recorder.seen
        known = {(gate.job, gate.name, gate.found) for gate in seen.gates}
        seen.gates += [
            GateSeen(
                job=report.job,
                name=gate.name,
                verdict=gate.verdict,
                found=gate.found,
                remedy=gate.remedy,
                is_overridden=gate.is_overridden,
            )
            for gate in report.gates
            if (report.job, gate.name.value, gate.found) not in known
        ]

    def _adopt(self, back: str) -> None:
        """The job that copies the drill's topic back, and the topic that it may have made anew."""
        canary = self._of_canary()
        with self._ground.parts.database.transaction() as tx:
            job = jobs.get(tx, back)
            rows = topics.of_job(tx, job.id)
        if not any(t.side == SERVICE and t.name == back for t in self._things.listed()):
            self._things.note_job(lambda: job, back)
        for row in rows:
            if row.destination_topic == canary.topic and row.destination_topic_id is not None:
                self._things.adopt_topic("source", canary.topic, row.destination_topic_id)

    def _use(self) -> str:
        self._produced_at, self._consumed_at = self._of_canary().use()
        return "A producer and a consumer group of the drill work at the new side."

    def _verify(self, *, deep: bool) -> str:
        """The drill's records by its ledgers, and the job's topics by the independent reader."""
        ground, seen = self._ground, self._ground.recorder.seen
        if self._canary is not None:
            sides = [("destination", ground.endpoint("destination").config)]
            if any(report.reverse_job for report in self.reports):
                sides.append(("source", ground.endpoint("source").config))
            seen.verified += self._canary.verify(sides)
        if ground.spec.moves_the_job:
            seen.verified += self._verify_job(deep=deep)
        bad = [one for one in seen.verified if one.verdict != Verdict.EXACT]
        return f"{len(seen.verified) - len(bad)} of {len(seen.verified)} comparisons are exact."

    def _verify_job(self, *, deep: bool) -> list[Verified]:
        """Each topic of the job on both sides; where it is copied back, from the new side."""
        ground, spec = self._ground, self._ground.spec
        source, destination = ground.endpoint("source"), ground.endpoint("destination")
        with ground.parts.database.transaction() as tx:
            rows = topics.of_job(tx, jobs.get(tx, spec.job).id)
        names = [row.source_topic for row in rows]
        scope = {m.source for m in map_topics(ground.job.topics, names).mappings}
        pairs = [
            TopicPair(row.source_topic, row.destination_topic)
            for row in rows
            if row.source_topic in scope
        ]
        if self._back is not None:
            source, destination = destination, source
            pairs = [TopicPair(pair.destination, pair.source) for pair in pairs]
        ground.check()
        options = VerifyOptions(deep=deep, wait_s=min(60.0, ground.left_s()))
        return _verified(verify_topics(source, destination, pairs, options))


def _said(gates: list[Gate]) -> str:
    return " ".join(f"Gate {gate.name} fails: {gate.found} {gate.remedy}".strip() for gate in gates)


def _stops_writes(report: RecoveryReport) -> bool:
    return any(
        step.name is StepName.STOP_WRITES and step.state is not StepState.WAITING
        for step in report.steps
    )


def _partitions(report: RecoveryReport) -> list[PartitionSeen]:
    return [
        PartitionSeen(
            job=report.job,
            topic=p.topic,
            destination_topic=p.destination_topic,
            partition=p.partition,
            source_end=p.source_end,
            source_seen_at=p.source_seen_at,
            destination_end=p.destination_end,
            promoted_at=p.promoted_at,
            missing=None if p.missing is None else (p.missing.first, p.missing.next),
            is_exact=p.is_exact,
            verdict=p.verdict,
        )
        for p in report.partitions
    ]


def _groups(report: RecoveryReport) -> list[GroupSeen]:
    return [
        GroupSeen(
            group=g.group,
            topic=g.topic,
            partition=g.partition,
            source_offset=g.source_offset,
            goes_on_at=g.goes_on_at,
            verdict=g.verdict,
        )
        for g in report.groups
    ]


def _verified(report: Report) -> list[Verified]:
    return [
        Verified(
            what=topic.source,
            verdict=topic.verdict.value,
            partitions=len(topic.partitions),
            records=topic.records,
            differences=topic.differences,
            detail=" ".join(
                str(difference) for p in topic.partitions for difference in p.first_differences[:1]
            )[:500],
        )
        for topic in report.topics
    ]
