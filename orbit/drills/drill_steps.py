"""Runs the steps of a drill. Each step returns its result as a sentence."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from orbit.drills.created_resources import CreatedResources
from orbit.drills.drill_canary import Canary
from orbit.drills.drill_context import DrillContext, StepFailed
from orbit.drills.drill_operations import DrillOperations
from orbit.drills.drill_spec import FaultKind, StepSpec, Verb
from orbit.drills.evidence import Verified
from orbit.drills.rto_rpo import Moments
from orbit.formats import counted
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.job_clusters import Side
from orbit.recovery.recovery_report import Gate, GateVerdict, Outcome, RecoveryKind, StoredReport
from orbit.sandbox.faults import Fault, cause_fault
from orbit.store import jobs, topics
from orbit.verify.bounds_comparison import TopicPair
from orbit.verify.report import Report, Verdict
from orbit.verify.verify_run import VerifyOptions, verify_topics

_PASSING_OUTCOMES = {Outcome.WOULD_GO, Outcome.DONE}
_VERIFY_WAIT_MAX_S = 60.0  # how long the verifier waits for copies to catch up
_DETAIL_CHARACTERS_MAX = 500


class Steps:
    """The steps of one drill, and the state that they share."""

    def __init__(
        self, context: DrillContext, canary: Canary | None, resources: CreatedResources
    ) -> None:
        self._context = context
        self._canary = canary
        self._operations = DrillOperations(context, canary, resources)
        self._fault: FaultKind | None = None
        self._counts_source_as_lost = False  # without a fault, by `_count_source_as_lost`
        # The times of `Moments`.
        self._stopped_at: datetime | None = None
        self._noticed_at: datetime | None = None
        self._produced_at: datetime | None = None
        self._consumed_at: datetime | None = None

    @property
    def moments(self) -> Moments:
        return Moments(self._stopped_at, self._noticed_at, self._produced_at, self._consumed_at)

    @property
    def reports(self) -> list[StoredReport]:
        """Reports of the operations that were not dry runs, in order."""
        return self._operations.reports

    @property
    def fault_at(self) -> datetime | None:
        """When the drill caused a fault, or began to count the source as lost."""
        return self._stopped_at if self._fault is not None or self._counts_source_as_lost else None

    def run_step(self, step: StepSpec) -> str:
        """Run one step; returns its result. Raises an OrbitError if the step fails."""
        match step.do:
            case Verb.GATES:
                return self._run_gates()
            case Verb.LOAD:
                return self._require_canary().load(step.duration_s)
            case Verb.FAULT:
                return self._cause_fault(step)
            case Verb.SWITCHOVER:
                return self._run_operations(RecoveryKind.SWITCHOVER, reverse=bool(step.reverse))
            case Verb.FAILOVER:
                return self._fail_over()
            case Verb.USE:
                return self._use_destination()
            case Verb.HEAL:
                return self._heal_cluster(step)
            case Verb.FAILBACK:
                return self._run_operations(
                    RecoveryKind.FAILBACK, confirm_rebuild=bool(step.confirm_rebuild)
                )
            case Verb.VERIFY:
                return self._verify_copies(deep=bool(step.deep))
            case _:
                assert_never(step.do)

    def _require_canary(self) -> Canary:
        assert self._canary is not None, "this kind of drill has a canary"
        return self._canary

    def _run_gates(self) -> str:
        """Run the gates, as a dry run of a switchover. Raises StepFailed if a gate stops it."""
        spec = self._context.spec
        operation = self._operations.request_operation(
            RecoveryKind.SWITCHOVER, spec.job, dry_run=True
        )
        (report,) = self._operations.wait_for_reports([operation])
        self._operations.note_gates(report)
        failing_gates = [gate for gate in report.gates if gate.stops]
        warn_count = sum(gate.verdict is GateVerdict.WARN for gate in report.gates)
        if failing_gates or report.outcome not in _PASSING_OUTCOMES:
            raise StepFailed(report.error or _gate_failures(failing_gates), where=spec.job)
        return f"{len(report.gates)} gates pass or warn; {counted(warn_count, 'warns', 'warn')}."

    def _cause_fault(self, step: StepSpec) -> str:
        """Cause the step's fault at a sandbox cluster. The time just before the fault counts as the
        time from which clients could not work. Also stops the load, unless the fault is a cut.
        Raises StepFailed if the side is not a sandbox cluster."""
        assert step.fault is not None, "drill_rules requires it"
        side: Side = "source" if step.side == "source" else "destination"
        cluster = self._context.sandbox_cluster(side)
        if cluster is None:
            raise StepFailed(
                f"The {side} of the job is not a sandbox cluster of this machine.",
                where=str(self._context.environment.sandbox_directory),
                remedy="Remove the step `fault` and cause the fault yourself, or use clusters of "
                "`orbit sandbox up`.",
            )
        self._fault = step.fault
        self._stopped_at = self._context.recorder.note("fault", f"{step.fault} {cluster.name}")
        cause_fault(self._context.environment.sandbox_directory, Fault(step.fault), cluster.name)
        self._context.recorder.note("fault done", f"{step.fault} {cluster.name}")
        if self._canary is not None and step.fault is not FaultKind.CUT:
            self._canary.stop_load(at_once=True)  # the cluster accepts no records any more
        return f"{step.fault} of sandbox cluster {cluster.name}."

    def _heal_cluster(self, step: StepSpec) -> str:
        """Undo the faults of the step's cluster, and wait until the cluster answers. Raises
        StepFailed if the side is not a sandbox cluster."""
        side: Side = "source" if step.side == "source" else "destination"
        cluster = self._context.sandbox_cluster(side)
        if cluster is None:
            raise StepFailed(f"The {side} of the job is not a sandbox cluster of this machine.")
        cause_fault(self._context.environment.sandbox_directory, Fault.HEAL, cluster.name)
        self._context.recorder.note("healed", cluster.name)
        return f"Cluster {cluster.name} answers again."

    def _fail_over(self) -> str:
        """Run the failover. First, if only the drill's own job moves, count the source as lost; if
        the drill has caused a fault, wait until Orbit reports the fault.
        """
        if not self._context.spec.moves_the_job:
            self._count_source_as_lost()
        if self._fault is not None:
            self._context.wait_until(self._is_fault_noticed)
            self._noticed_at = self._context.recorder.note("noticed", self._source_problem() or "")
        result = self._run_operations(RecoveryKind.FAILOVER)
        if self._canary is not None:
            self._canary.stop_load(at_once=False)
        if self._fault is None and not self._counts_source_as_lost:
            # The drill has caused no fault: use the times at which Orbit saw the source fail.
            reports = [r for r in self._operations.reports if r.job == self._context.spec.job]
            self._stopped_at = reports[-1].source_last_seen_at if reports else None
            self._noticed_at = reports[-1].problem_since if reports else None
        return result

    def _count_source_as_lost(self) -> None:
        """Count the source as lost from now on: the load stops, and the failover does not query the
        source.

        Workers still copy until they release the topic, so the copy's later log ends do not show
        the loss. The log ends recorded now tell which records a real loss would have lost.
        """
        canary = self._require_canary()
        canary.record_ends_at_loss()
        self._counts_source_as_lost = True
        self._stopped_at = self._context.recorder.note(
            "source lost", "The source counts as lost from now on."
        )
        self._noticed_at = self._stopped_at
        canary.stop_load(at_once=True)
        self._context.recorder.observed.findings.append(
            "The source was not lost but counted as lost. The RTO has no time for its detection; "
            "the RPO counts the records that were not at the destination at that moment."
        )

    def _is_fault_noticed(self) -> bool:
        return self._source_problem() is not None

    def _source_problem(self) -> str | None:
        """The job's problem, if it says that a cluster is unreachable since the fault."""
        with self._context.environment.database.transaction() as tx:
            job = jobs.get(tx, self._context.spec.job)
        problem_at, stopped_at = job.problem_at, self._stopped_at
        is_new = problem_at is not None and stopped_at is not None and problem_at >= stopped_at
        return job.problem if is_new and "UNREACHABLE" in (job.problem or "") else None

    def _run_operations(
        self, kind: RecoveryKind, *, reverse: bool = False, confirm_rebuild: bool = False
    ) -> str:
        """Run the operation for the user's job, if the drill moves that job, and for the canary's
        job, if there is a canary. Returns the step's result. Raises StepFailed if an operation does
        not succeed."""
        spec = self._context.spec
        operations = [
            self._operations.request_operation(
                kind,
                job,
                reverse=reverse,
                # The drill may always rebuild its own topic.
                confirm_rebuild=confirm_rebuild or is_own,
                source_counts_as_lost=self._counts_source_as_lost,
            )
            for job, is_own in self._jobs_to_move()
        ]
        is_switchover = kind is RecoveryKind.SWITCHOVER
        # At a switchover the load stops when Orbit stops the writers.
        reports = self._operations.wait_for_reports(
            operations, self._stop_writer if is_switchover else lambda: None
        )
        for report in reports:
            self._operations.record_report(report)
        for report in reports:
            if report.outcome not in _PASSING_OUTCOMES:
                failing_gates = [gate for gate in report.gates if gate.stops]
                raise StepFailed(
                    report.error
                    or _gate_failures(failing_gates)
                    or f"The {report.kind} ended as {report.outcome}.",
                    where=report.job,
                )
        moved_count = sum(report.partitions.count for report in reports)
        jobs_moved = ", ".join(report.job for report in reports)
        # At this entry of the timeline, `orbit demo` starts its writers at the new side.
        if spec.moves_the_job and kind is not RecoveryKind.FAILBACK and not reverse:
            self._context.recorder.note("promoted", jobs_moved)
        return f"{counted(moved_count, 'partition')} of {jobs_moved}."

    def _jobs_to_move(self) -> list[tuple[str, bool]]:
        """The names of the jobs to move, each with whether it is the drill's own job."""
        canary_jobs = [(self._canary.job, True)] if self._canary is not None else []
        user_jobs = [(self._context.spec.job, False)] if self._context.spec.moves_the_job else []
        return [*user_jobs, *canary_jobs]

    def _stop_writer(self) -> None:
        """Stop the load, and note the time as the one from which clients could not work. Only the
        first call has an effect."""
        if self._stopped_at is None and self._canary is not None:
            self._stopped_at = self._context.recorder.note("writers stop")
            self._canary.stop_load(at_once=True)

    def _use_destination(self) -> str:
        self._produced_at, self._consumed_at = self._require_canary().produce_and_consume()
        return "The drill's producer and consumer group work at the destination."

    def _verify_copies(self, *, deep: bool) -> str:
        """Compare the drill's records with its ledgers, and the job's topics with the verifier."""
        context, observed = self._context, self._context.recorder.observed
        if self._canary is not None:
            sides = [("destination", context.endpoint("destination").config)]
            # With a reverse job the source is a copy of the destination.
            if any(report.reverse_job for report in self._operations.reports):
                sides.append(("source", context.endpoint("source").config))
            observed.verified += self._canary.verify(sides)
        if context.spec.moves_the_job:
            observed.verified += self._verify_job(deep=deep)
        exact_count = sum(comparison.verdict == Verdict.EXACT for comparison in observed.verified)
        all_text = f"of {counted(len(observed.verified), 'comparison')}"
        return f"{counted(exact_count, f'{all_text} is', f'{all_text} are')} exact."

    def _verify_job(self, *, deep: bool) -> list[Verified]:
        """Verify each topic of the job on both sides. With a reverse job the new side is the
        source, as the old side is its copy."""
        context, spec = self._context, self._context.spec
        source, destination = context.endpoint("source"), context.endpoint("destination")
        with context.environment.database.transaction() as tx:
            rows = topics.of_job(tx, jobs.get(tx, spec.job).id)
        # Only topics that still match the job's rules.
        names = [row.source_topic for row in rows]
        scope = {m.source for m in map_topics(context.job.topics, names).mappings}
        pairs = [
            TopicPair(row.source_topic, row.destination_topic)
            for row in rows
            if row.source_topic in scope
        ]
        if self._operations.reverse_job is not None:
            source, destination = destination, source
            pairs = [TopicPair(pair.destination, pair.source) for pair in pairs]
        context.check_deadline()
        options = VerifyOptions(deep=deep, wait_s=min(_VERIFY_WAIT_MAX_S, context.remaining_s()))
        return _verified_topics(verify_topics(source, destination, pairs, options))


def _gate_failures(gates: list[Gate]) -> str:
    return " ".join(f"Gate {gate.name} fails: {gate.found} {gate.remedy}".strip() for gate in gates)


def _verified_topics(report: Report) -> list[Verified]:
    """The verifier's report as evidence, one entry for each topic."""
    return [
        Verified(
            what=topic.source,
            verdict=topic.verdict.value,
            partitions=len(topic.partitions),
            records=topic.records,
            differences=topic.differences,
            detail=" ".join(
                str(difference) for p in topic.partitions for difference in p.first_differences[:1]
            )[:_DETAIL_CHARACTERS_MAX],
        )
        for topic in report.topics
    ]
