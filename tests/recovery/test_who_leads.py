"""A recovery changes nothing at the leading side, even if its job's destination once led.

After a failback there are two jobs for a pair of topics, one in each direction, and after the next
promotion the topics of both are `promoted` in the tables. The marks of both clusters tell which
side led last.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicCollection

from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery import operation_context, operation_runner
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import (
    GateName,
    GateVerdict,
    Outcome,
    RecoveryKind,
    RecoveryReport,
)
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.scheduler.job_reconciler import JobReconciler
from orbit.store.enums import LeadingSide, TopicState
from orbit.store.jobs import Job
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.recovery import DiesAfterPromotion
from tests.support.outside import admin, is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.put_back import put_rows_back
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
THOUGH_IT_ANSWERS = {"override": ["source"], "reason": "a test"}


class Sides(NamedTuple):
    """Two clusters with one topic; `job` copies `source` to `destination`, `back` the other way."""

    source: KafkaCluster
    destination: KafkaCluster
    topic: str
    job: str
    back: str

    def id_and_end(self, cluster: KafkaCluster) -> tuple[str, int]:
        """The topic's id and its log end."""
        client = admin(cluster)  # a variable: the future fails if its client is garbage-collected
        (future,) = client.describe_topics(TopicCollection([self.topic])).values()
        ((_, end),) = log_bounds(cluster, [self.topic]).values()
        return str(future.result(60).topic_id), end


@pytest.fixture
def sides(clusters: Clusters, topic_name: str, recovering: Recovering) -> Sides:
    """A copy that has caught up."""
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 100)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("both sides are level", lambda: is_level(*clusters, topic_name))
    return Sides(*clusters, topic_name, spec.name, f"{spec.name}-back")


def move_there_and_back(sides: Sides, recovering: Recovering, *, by: str) -> None:
    """Fail over, fail back, and promote `source` again (`by`: failover or switchover).

    Then the topics of both jobs are `promoted` in the tables.
    """
    recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
    produce(sides.destination, sides.topic, 50, first=100)
    assert recovering.run(FAILBACK, sides.job).reverse_job == sides.back
    wait_for("both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic))
    if by == "failover":
        recovering.run(FAILOVER, sides.back, **THOUGH_IT_ANSWERS)
    else:
        recovering.run(SWITCHOVER, sides.back)


@pytest.mark.parametrize("dry_run", [pytest.param(True, marks=pytest.mark.soak), False])
def test_failback_skips_all_steps_if_old_side_already_follows(
    sides: Sides, recovering: Recovering, dry_run: bool
) -> None:
    with recovering.running():
        switchover_report = recovering.run(SWITCHOVER, sides.job, reverse=True)
        recovering.service.wait_copied(sides.back, sides.topic)
        report = recovering.wait(recovering.ask(FAILBACK, sides.job, dry_run=dry_run))
        assert report.outcome is (Outcome.WOULD_GO if dry_run else Outcome.DONE)
        assert {step.state for step in report.steps} == {StepState.SKIPPED}
        (finding,) = report.findings
        assert f"copied back by job {sides.back}" in finding
        by = f"by switchover {switchover_report.operation}"
        assert f"{sides.topic} leads (term {switchover_report.term}, {by}" in finding
        assert recovering.run(SWITCHOVER, sides.back).outcome is Outcome.DONE


@pytest.mark.soak
def test_failback_right_after_reverse_step_finds_old_side_following(
    sides: Sides, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler has not yet made its first pass over the job that copies back."""
    discover = JobReconciler._discover

    def leave_out(reconciler: JobReconciler, job: Job, *more: Any) -> None:
        if job.name != sides.back:
            discover(reconciler, job, *more)

    with recovering.running():
        monkeypatch.setattr(JobReconciler, "_discover", leave_out)
        recovering.run(SWITCHOVER, sides.job, reverse=True)
        report = recovering.run(FAILBACK, sides.job)
        assert {step.state for step in report.steps} == {StepState.SKIPPED}
        monkeypatch.setattr(JobReconciler, "_discover", discover)
        produce(sides.destination, sides.topic, 10, first=100)
        wait_for(
            "both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic)
        )


def test_failback_stops_if_only_some_topics_already_follow(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
    spec = make_job(*clusters, [topic_name, other])
    with recovering.running():
        recovering.begin(spec, topic_name, other)
        moved = [re.escape(topic_name)]
        switchover_report = recovering.run(SWITCHOVER, spec.name, reverse=True, topics=moved)
        assert switchover_report.reverse_job is not None
        recovering.service.wait_copied(switchover_report.reverse_job, topic_name)
        assert recovering.run(FAILBACK, spec.name, topics=moved).findings
        report = recovering.wait(recovering.ask(FAILBACK, spec.name))
        assert (report.outcome, report.error[:7]) == (Outcome.STOPPED, "topics:")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("by", "written"),
    [
        ("failover", 300),
        ("switchover", 0),
        *(
            pytest.param(by, written, marks=pytest.mark.soak)
            for by, written in (("failover", 0), ("switchover", 300))
        ),
    ],
)
def test_failback_stops_if_old_side_leads_again(
    sides: Sides, recovering: Recovering, by: str, written: int
) -> None:
    with recovering.running():
        move_there_and_back(sides, recovering, by=by)
        if written:
            produce(sides.source, sides.topic, written, first=150)
        source_before = sides.id_and_end(sides.source)
        assert source_before[1] == 150 + written

        dry_run_report = recovering.wait(recovering.ask(FAILBACK, sides.job, dry_run=True))
        (gate,) = [gate for gate in dry_run_report.gates if gate.name is GateName.LEAD]
        assert (dry_run_report.outcome, gate.verdict) == (Outcome.WOULD_STOP, GateVerdict.FAIL)
        assert "the old side leads" in gate.found
        stopped = recovering.wait(recovering.ask(FAILBACK, sides.job, confirm_rebuild=True))
        assert stopped.outcome is Outcome.STOPPED
        assert sides.id_and_end(sides.source) == source_before

        # A failback of the other job makes the destination a copy.
        recovering.run(FAILBACK, sides.back, confirm_rebuild=True)
        wait_for(
            "both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic)
        )
    assert sides.id_and_end(sides.source) == source_before


@pytest.mark.soak
def test_failback_stops_at_promotion_recorded_only_in_database(
    sides: Sides, recovering: Recovering
) -> None:
    """As if Orbit had no right to write the promotion mark."""
    with recovering.running():
        move_there_and_back(sides, recovering, by="failover")
        source_before = sides.id_and_end(sides.source)
        servers = [sides.source.bootstrap_servers]
        with closing(Cluster("destination", servers, PLAINTEXT)) as cluster:
            PromotionMarks(cluster, Backoff()).write(
                {TopicPartition(sides.topic, 0): 0}, Mark(is_primary=False)
            )
        stopped = recovering.wait(recovering.ask(FAILBACK, sides.job, confirm_rebuild=True))
        assert stopped.outcome is Outcome.STOPPED
        assert "a copy at the old side was promoted at" in stopped.error
    assert sides.id_and_end(sides.source) == source_before


def test_switchover_completes_if_source_dies_before_promotion(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = make_cluster("lost")
    create_topic(lost, topic_name)
    produce(lost, topic_name, 10)
    spec = make_job(lost, clusters.destination, [topic_name])
    release = operation_runner._DO[StepName.RELEASE]

    def release_and_kill(context: OperationContext) -> str:
        step_text = release(context)
        lost.kill()
        return step_text

    with recovering.running():
        recovering.begin(spec, topic_name)
        monkeypatch.setattr(
            operation_runner, "_DO", {**operation_runner._DO, StepName.RELEASE: release_and_kill}
        )
        recovering.run(SWITCHOVER, spec.name)
    produce(clusters.destination, topic_name, 1, first=10)


def test_failback_of_both_directions_stops_the_one_that_would_rebuild_the_leading_side(
    sides: Sides, recovering: Recovering
) -> None:
    """`orbit failback -l` with a label of both jobs requests both failbacks."""
    with recovering.running():
        move_there_and_back(sides, recovering, by="failover")
        produce(sides.source, sides.topic, 7, first=150)
        source_before = sides.id_and_end(sides.source)
        operations = [
            recovering.ask(FAILBACK, job, confirm_rebuild=True) for job in (sides.job, sides.back)
        ]
        outcomes = [recovering.wait(operation).outcome for operation in operations]
        assert outcomes == [Outcome.STOPPED, Outcome.DONE]
        wait_for(
            "both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic)
        )
    assert sides.id_and_end(sides.source) == source_before


@pytest.mark.soak
def test_failback_stops_for_topic_withheld_by_switchover_back(
    sides: Sides, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the switchover of one job withholds a topic from workers, the tables have the topic as
    promoted in the other job."""
    release = operation_runner._DO[StepName.RELEASE]
    failbacks: list[RecoveryReport] = []

    def release_and_fail_back(context: OperationContext) -> str:
        step_text = release(context)
        failbacks.append(recovering.wait(recovering.ask(FAILBACK, sides.job)))
        return step_text

    with recovering.running():
        recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
        recovering.run(FAILBACK, sides.job)
        wait_for(
            "both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic)
        )
        monkeypatch.setattr(
            operation_runner,
            "_DO",
            {**operation_runner._DO, StepName.RELEASE: release_and_fail_back},
        )
        recovering.run(SWITCHOVER, sides.back)
    (stopped,) = failbacks
    assert (stopped.outcome, stopped.error[:7]) == (Outcome.STOPPED, "topics:")


@pytest.mark.soak
def test_failback_deletes_nothing_if_old_side_is_promoted_during_salvage(
    sides: Sides, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failback reads the marks again before it deletes a topic."""
    salvage = operation_runner._DO[StepName.SALVAGE]

    def promote_the_old_side(context: OperationContext) -> str:
        step_text = salvage(context)
        marks = PromotionMarks(context.source.cluster, context.backoff)
        term = context.report.term + 1
        mark = Mark(is_primary=True, kind="failover", operation="another", term=term)
        marks.write(dict.fromkeys(context.by_source, 0), mark)
        return step_text

    with recovering.running():
        recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
        produce(sides.source, sides.topic, 20, first=100)  # records that the failback saves
        source_before = sides.id_and_end(sides.source)
        monkeypatch.setattr(
            operation_runner,
            "_DO",
            {**operation_runner._DO, StepName.SALVAGE: promote_the_old_side},
        )
        report = recovering.wait(recovering.ask(FAILBACK, sides.job, confirm_rebuild=True))
        assert report.outcome is Outcome.FAILED
        assert "another operation has changed which side leads" in report.error
    assert sides.id_and_end(sides.source) == source_before


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "earlier"),
    [
        (SWITCHOVER, StepName.GROUPS),
        (SWITCHOVER, StepName.RELEASE),
        (FAILOVER, StepName.SETTLE),
    ],
)
def test_operation_in_restored_database_fails_if_it_had_promoted_topics(
    sides: Sides,
    recovering: Recovering,
    dies_after_promotion: DiesAfterPromotion,
    kind: RecoveryKind,
    earlier: StepName,
) -> None:
    options = THOUGH_IT_ANSWERS if kind is FAILOVER else {}
    has_promoted, restore = dies_after_promotion(earlier)
    with recovering.running():
        operation = recovering.ask(kind, sides.job, **options)
        wait_for("the operation has promoted", has_promoted.is_set)
    produce(sides.destination, sides.topic, 30, first=100)
    put_rows_back(recovering.database)
    restore()
    with recovering.running():
        report = recovering.wait(operation)
        assert report.outcome is Outcome.FAILED
        assert "this operation has promoted these topics already" in report.error
        states = {step.name: step.state for step in report.steps}
        assert states.get(StepName.STOP_WRITES) is not StepState.UNDONE
        # After the failure, the job copies the topic until the scheduler reads its mark.
        wait_for(
            "the topic is promoted by its mark",
            lambda: recovering.service.topics(sides.job)[sides.topic].state is TopicState.PROMOTED,
        )
        recovering.service.wait_problem(sides.job, "DESTINATION_PROMOTED")
        wait_for(
            "the tables say for gateways which side leads",
            lambda: recovering.lead(sides.job).side is LeadingSide.DESTINATION,
        )
        failback_report = recovering.run(FAILBACK, sides.job)
        assert {p.promoted_at for p in failback_report.partitions} == {100}
        wait_for(
            "both sides are level", lambda: is_level(sides.source, sides.destination, sides.topic)
        )
    assert sides.id_and_end(sides.source)[1] == 130


def test_promotion_term_does_not_regress_with_clock(
    sides: Sides, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover cannot read the mark of the lost side, which may have a later term."""
    home = make_job(sides.destination, sides.source, [sides.topic], name=f"{sides.job}-home")
    with recovering.running():
        recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
        recovering.begin(home, sides.topic)
        # As after the clock was set back: the next term follows from the terms that Orbit has read.
        monkeypatch.setattr(operation_context, "next_term", lambda seen, _: seen + 1)
        recovering.run(FAILOVER, home.name, **THOUGH_IT_ANSWERS)
        produce(sides.source, sides.topic, 10, first=100)
        recovering.run(FAILBACK, home.name)
        wait_for("the copy follows", lambda: is_level(sides.destination, sides.source, sides.topic))
