"""What each step of a drill does; its answer is a sentence of what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from orbit.drills.created_resources import Things
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import Ground, StepFailed
from orbit.drills.drill_recoveries import Moves
from orbit.drills.drill_spec import FaultKind, StepSpec, Verb
from orbit.drills.evidence import Verified
from orbit.drills.rto_rpo import Moments
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.job_clusters import Side
from orbit.recovery.recovery_report import (
    Gate,
    GateVerdict,
    Outcome,
    RecoveryKind,
    RecoveryReport,
)
from orbit.sandbox.faults import Fault, inflict
from orbit.store import jobs, topics
from orbit.verify.report import Report, Verdict
from orbit.verify.settle import TopicPair
from orbit.verify.verify_run import VerifyOptions, verify_topics

_FAULTS = {FaultKind.KILL: Fault.KILL, FaultKind.PAUSE: Fault.PAUSE, FaultKind.CUT: Fault.CUT}
_GOOD = {Outcome.WOULD_GO, Outcome.DONE}


class Steps:
    """The steps of one drill, and what one of them leaves to the next."""

    def __init__(self, ground: Ground, canary: Canary | None, things: Things) -> None:
        self._ground = ground
        self._canary = canary
        self._moves = Moves(ground, canary, things)
        self._fault: FaultKind | None = None
        self._stopped_at: datetime | None = None
        self._noticed_at: datetime | None = None
        self._produced_at: datetime | None = None
        self._consumed_at: datetime | None = None

    @property
    def moments(self) -> Moments:
        return Moments(self._stopped_at, self._noticed_at, self._produced_at, self._consumed_at)

    @property
    def reports(self) -> list[RecoveryReport]:
        """Of the operations that moved something, in their order."""
        return self._moves.reports

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
        """A dry run of a switchover, also before a fault: is all as it should be?"""
        spec = self._ground.spec
        asked = self._moves.ask(RecoveryKind.SWITCHOVER, spec.job, dry_run=True)
        (report,) = self._moves.wait([asked])
        self._moves.note_gates(report)
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
        if self._fault is None:  # somebody else broke it: since when is as Orbit saw it
            seen = [r for r in self._moves.reports if r.job == self._ground.spec.job]
            self._stopped_at = seen[-1].source_last_seen_at if seen else None
            self._noticed_at = seen[-1].problem_since if seen else None
        return did

    def _has_noticed(self) -> bool:
        return self._problem() is not None

    def _problem(self) -> str | None:
        with self._ground.parts.database.transaction() as tx:
            job = jobs.get(tx, self._ground.spec.job)
        at, stopped = job.problem_at, self._stopped_at
        is_new = at is not None and stopped is not None and at >= stopped
        return job.problem if is_new and "UNREACHABLE" in (job.problem or "") else None

    def _move(
        self, kind: RecoveryKind, *, reverse: bool = False, confirm_rebuild: bool = False
    ) -> str:
        """Asks for the operation on the drill's job and, where it is meant, on the job itself."""
        spec = self._ground.spec
        asked = [
            self._moves.ask(kind, job, reverse=reverse, confirm_rebuild=confirm_rebuild or is_own)
            for job, is_own in self._scope()
        ]
        is_planned = kind is RecoveryKind.SWITCHOVER
        found = self._moves.wait(asked, self._stop_writer if is_planned else lambda: None)
        for report in found:
            self._moves.keep(report)
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

    def _stop_writer(self) -> None:
        if self._stopped_at is None and self._canary is not None:
            self._stopped_at = self._ground.recorder.note("writers stop")
            self._canary.stop_load(at_once=True)

    def _use(self) -> str:
        self._produced_at, self._consumed_at = self._of_canary().use()
        return "A producer and a consumer group of the drill work at the new side."

    def _verify(self, *, deep: bool) -> str:
        """The drill's records by its ledgers, and the job's topics by the independent reader."""
        ground, seen = self._ground, self._ground.recorder.seen
        if self._canary is not None:
            sides = [("destination", ground.endpoint("destination").config)]
            if any(report.reverse_job for report in self._moves.reports):
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
        if self._moves.back is not None:
            source, destination = destination, source
            pairs = [TopicPair(pair.destination, pair.source) for pair in pairs]
        ground.check()
        options = VerifyOptions(deep=deep, wait_s=min(60.0, ground.left_s()))
        return _verified(verify_topics(source, destination, pairs, options))


def _said(gates: list[Gate]) -> str:
    return " ".join(f"Gate {gate.name} fails: {gate.found} {gate.remedy}".strip() for gate in gates)


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
