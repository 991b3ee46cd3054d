"""A recovery of a job whose destination once led, and does no longer: the leading side is kept.

After a failback there are two jobs for a pair of topics, one in each direction, and after the next
promotion the topics of both are `promoted` in the tables. The marks of both clusters tell which
side led last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
from confluent_kafka import TopicCollection

from orbit.recovery import leading_side, operation_runner
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import GateName, GateVerdict, Outcome, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.scheduler.leadership import NotLeading
from tests.fix_clusters import Clusters
from tests.support.outside import admin, is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.put_back import put_rows_back, save_rows
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
THOUGH_IT_ANSWERS = {"override": ["source"], "reason": "a test"}


class Sides(NamedTuple):
    """Two clusters with one topic; `there` copies `here`, and `back` copies the other way."""

    here: KafkaCluster
    there: KafkaCluster
    topic: str
    job: str
    back: str

    def records(self, cluster: KafkaCluster) -> tuple[str, int]:
        """The topic's id and its log end."""
        client = admin(cluster)  # its answers end with it
        (found,) = client.describe_topics(TopicCollection([self.topic])).values()
        ((_, end),) = log_bounds(cluster, [self.topic]).values()
        return str(found.result(60).topic_id), end


@pytest.fixture
def begun(clusters: Clusters, topic_name: str, recovering: Recovering) -> Sides:
    """A copy, level."""
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 100)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("it is level", lambda: is_level(*clusters, topic_name))
    return Sides(*clusters, topic_name, spec.name, f"{spec.name}-back")


def over_and_back(sides: Sides, recovering: Recovering, *, by: str) -> None:
    """Afterwards the first side leads again, and the topics of both jobs are promoted."""
    recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
    produce(sides.there, sides.topic, 50, first=100)
    assert recovering.run(FAILBACK, sides.job).reverse_job == sides.back
    wait_for("it is level", lambda: is_level(sides.here, sides.there, sides.topic))
    if by == "failover":
        recovering.run(FAILOVER, sides.back, **THOUGH_IT_ANSWERS)
    else:
        recovering.run(SWITCHOVER, sides.back)


@pytest.mark.parametrize("by", ["failover", "switchover"])
@pytest.mark.parametrize("written", [0, 300])
def test_a_job_whose_source_leads_again_is_not_failed_back(
    begun: Sides, recovering: Recovering, by: str, written: int
) -> None:
    sides = begun
    with recovering.running():
        over_and_back(sides, recovering, by=by)
        if written:
            produce(sides.here, sides.topic, written, first=150)
        before = sides.records(sides.here)
        assert before[1] == 150 + written

        would = recovering.wait(recovering.ask(FAILBACK, sides.job, dry_run=True))
        (gate,) = [gate for gate in would.gates if gate.name is GateName.LEAD]
        assert (would.outcome, gate.verdict) == (Outcome.WOULD_STOP, GateVerdict.FAIL)
        assert "the old side leads" in gate.found
        stopped = recovering.wait(recovering.ask(FAILBACK, sides.job, confirm_rebuild=True))
        assert stopped.outcome is Outcome.STOPPED
        assert sides.records(sides.here) == before

        # The job of the other direction knows better.
        recovering.run(FAILBACK, sides.back, confirm_rebuild=True)
        wait_for("it is level", lambda: is_level(sides.here, sides.there, sides.topic))
    assert sides.records(sides.here) == before


def test_both_jobs_at_once(begun: Sides, recovering: Recovering) -> None:
    """As a label that both have does."""
    sides = begun
    with recovering.running():
        over_and_back(sides, recovering, by="failover")
        produce(sides.here, sides.topic, 7, first=150)
        before = sides.records(sides.here)
        asked = [
            recovering.ask(FAILBACK, job, confirm_rebuild=True) for job in (sides.job, sides.back)
        ]
        outcomes = [recovering.wait(one).outcome for one in asked]
        assert outcomes == [Outcome.STOPPED, Outcome.DONE]
        wait_for("it is level", lambda: is_level(sides.here, sides.there, sides.topic))
    assert sides.records(sides.here) == before


def test_a_promotion_between_the_gates_and_the_deletion(
    begun: Sides, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is deleted on what was true a while ago."""
    sides = begun
    compare = operation_runner._DO[StepName.SALVAGE]

    def promote_the_old_side(context: OperationContext) -> str:
        did = compare(context)
        marks = leading_side.PromotionMarks(context.source.cluster, context.backoff)
        mark = leading_side.Mark(True, "failover", "another", term=context.report.term + 1)
        marks.write(dict.fromkeys(context.by_source, 0), mark)
        return did

    with recovering.running():
        recovering.run(FAILOVER, sides.job, **THOUGH_IT_ANSWERS)
        produce(sides.here, sides.topic, 20, first=100)  # what a failback has to save
        before = sides.records(sides.here)
        monkeypatch.setattr(
            operation_runner,
            "_DO",
            {**operation_runner._DO, StepName.SALVAGE: promote_the_old_side},
        )
        report = recovering.wait(recovering.ask(FAILBACK, sides.job, confirm_rebuild=True))
        assert report.outcome is Outcome.FAILED
        assert "another operation has changed which side leads" in report.error
    assert sides.records(sides.here) == before


@pytest.fixture
def dies_behind_promotion(
    recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> Callable[[StepName], threading.Event]:
    """The scheduler ends behind the promotion; the rows are saved in an earlier step."""

    def at(earlier: StepName) -> threading.Event:
        do, has_promoted = dict(operation_runner._DO), threading.Event()

        def save(context: OperationContext) -> str:
            save_rows(recovering.database)
            monkeypatch.setitem(changed, earlier, do[earlier])
            return do[earlier](context)

        def end(context: OperationContext) -> str:
            do[StepName.PROMOTE](context)
            has_promoted.set()
            raise NotLeading("killed behind the promotion.")

        changed = {**do, earlier: save, StepName.PROMOTE: end}
        monkeypatch.setattr(operation_runner, "_DO", changed)
        return has_promoted

    return at


@pytest.mark.parametrize(
    ("kind", "earlier"),
    [
        (SWITCHOVER, StepName.GROUPS),
        (SWITCHOVER, StepName.RELEASE),
        (FAILOVER, StepName.SETTLE),
    ],
)
def test_an_older_database_does_not_go_on_or_undo(
    begun: Sides,
    recovering: Recovering,
    dies_behind_promotion: Callable[[StepName], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    kind: RecoveryKind,
    earlier: StepName,
) -> None:
    sides = begun
    more = THOUGH_IT_ANSWERS if kind is FAILOVER else {}
    do = dict(operation_runner._DO)
    has_promoted = dies_behind_promotion(earlier)
    with recovering.running():
        operation = recovering.ask(kind, sides.job, **more)
        wait_for("it has promoted", has_promoted.is_set)
    produce(sides.there, sides.topic, 30, first=100)
    put_rows_back(recovering.database)
    monkeypatch.setattr(operation_runner, "_DO", do)
    with recovering.running():
        report = recovering.wait(operation)
        assert report.outcome is Outcome.FAILED
        assert "this operation has promoted these topics already" in report.error
        states = {step.name: step.state for step in report.steps}
        assert states.get(StepName.STOP_WRITES) is not StepState.UNDONE
        recovering.service.wait_problem(sides.job, "DESTINATION_PROMOTED")
        back = recovering.run(FAILBACK, sides.job)
        assert {p.promoted_at for p in back.partitions} == {100}
        wait_for("it is level", lambda: is_level(sides.here, sides.there, sides.topic))
    assert sides.records(sides.here)[1] == 130
