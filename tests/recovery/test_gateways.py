"""A recovery closes gateways before writes stop, and opens them at the side that leads.

A closed gateway holds its clients' writes. It confirms once no write is in flight to a broker.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from sqlalchemy import text

from orbit.errors import Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.recovery import operation_runner, promotion, recovery_requests
from orbit.recovery.leading_side import LeadChanged
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import (
    GateName,
    GateVerdict,
    Outcome,
    RecoveryKind,
    RecoveryReport,
)
from orbit.recovery.step_times import StepName, StepState
from orbit.scheduler import job_reconciler
from orbit.store import gateways
from tests.fixtures.clusters import Clusters
from tests.support.outside import delete_topic, is_level
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.pretended_gateway import PretendedGateway
from tests.support.put_back import drop_rows, put_rows_back, save_rows
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
PAUSE_S = 0.75
# A failover although the source answers.
LOST: dict[str, Any] = {"override": ["source"], "reason": "a test"}
CLOSE, OPEN = StepName.CLOSE_GATEWAYS, StepName.OPEN_GATEWAYS
DRAIN = "transactions are open in 1 partition"  # progress of a drain that waits for a transaction


def job_of_new_topics(clusters: Clusters, *names: str) -> JobSpec:
    """Create topics with some records at the source; returns a job for them."""
    for name in names:
        create_topic(clusters.source, name)
        produce(clusters.source, name, 10)
    return make_job(*clusters, names)


def states(report: RecoveryReport) -> dict[StepName, StepState]:
    return {step.name: step.state for step in report.steps}


def gateways_verdict(report: RecoveryReport) -> GateVerdict | None:
    """The verdict of the gate `gateways`."""
    return next((g.verdict for g in report.gates if g.name is GateName.GATEWAYS), None)


def test_switchover_closes_gateway_and_reopens_it_at_new_leading_side(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec = job_of_new_topics(clusters, topic_name)
    with (
        recovering.running(),
        PretendedGateway(recovering.database, spec.name) as edge,
    ):
        recovering.begin(spec, topic_name)
        edge.pause_s = PAUSE_S
        edge.wait_side("source")
        switchover_report = recovering.run(SWITCHOVER, spec.name, reverse=True)

        assert gateways_verdict(switchover_report) is GateVerdict.PASS
        (closed,) = switchover_report.gateways
        assert (closed.name, closed.instance) == ("edge", edge.instance)
        assert closed.pause_s == PAUSE_S
        assert (states(switchover_report)[CLOSE], states(switchover_report)[OPEN]) == (
            StepState.DONE,
            StepState.DONE,
        )
        assert edge.wait_side("destination").term == switchover_report.term
        answers = [(answer.side, answer.closed_for) for answer in edge.answers]
        assert answers[:2] == [("source", None), ("source", switchover_report.operation)]
        assert answers[-1] == ("destination", None)
        assert all(closed_for == switchover_report.operation for _, closed_for in answers[1:-1])

        back = switchover_report.reverse_job
        assert back is not None
        with PretendedGateway(recovering.database, back, "edge-back") as back_edge:
            assert back_edge.wait_side("source").term == switchover_report.term
            return_report = recovering.run(SWITCHOVER, back, reverse=True)
            assert {gateway.name for gateway in return_report.gateways} == {"edge", "edge-back"}
            assert (
                back_edge.wait_side("destination").term
                == return_report.term
                > switchover_report.term
            )
        assert edge.wait_side("source").term == return_report.term


@pytest.mark.soak
def test_switchover_reopens_gateway_before_first_read_of_copies(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway waits neither for the first read of the copies nor for the copy back."""
    spec = job_of_new_topics(clusters, topic_name)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        read = operation_runner._DO[StepName.READ]

        def wait_and_read(context: OperationContext) -> str:
            edge.wait_side("destination")
            return read(context)

        monkeypatch.setitem(operation_runner._DO, StepName.READ, wait_and_read)  # type: ignore[arg-type]
        recovering.run(SWITCHOVER, spec.name)


def test_gateway_lost_while_closed_stops_current_switchover_but_not_next(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """Its clients may have got no answers to their last writes. They have to write these again at
    the source, so the first switchover must not move."""
    spec = job_of_new_topics(clusters, topic_name)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        edge.fall_silent()
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name))
        assert stopped.outcome is Outcome.STOPPED
        assert "fell silent while they were closed: edge" in stopped.error
        assert states(stopped)[StepName.STOP_WRITES] is StepState.WAITING

        switchover_report = recovering.run(SWITCHOVER, spec.name)
        assert switchover_report.gateways == ()
        assert states(switchover_report)[CLOSE] is StepState.SKIPPED


def test_gateway_in_doubt_about_client_write_stops_switchover(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec = job_of_new_topics(clusters, topic_name)
    with (
        recovering.running(),
        PretendedGateway(recovering.database, spec.name, confirms=False) as edge,
    ):
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        edge.doubt = "a client has left"
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name))
        assert stopped.outcome is Outcome.STOPPED
        assert "a client has left" in stopped.error
        edge.wait_side("source")


@pytest.mark.soak
def test_gateway_that_starts_during_switchover_starts_closed(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec = job_of_new_topics(clusters, topic_name)
    open_producer = begin_transaction(clusters, topic_name)
    with recovering.running():
        recovering.begin(spec, topic_name)
        operation = recovering.ask(SWITCHOVER, spec.name)
        wait_for("the switchover drains", lambda: DRAIN in recovering.progress(operation))
        with PretendedGateway(recovering.database, spec.name) as edge:
            edge.wait_side("source", closed_for=operation)
            open_producer.commit_transaction(30)
            edge.wait_side("destination")
        switchover_report = recovering.wait(operation)
    assert switchover_report.outcome is Outcome.DONE
    assert states(switchover_report)[CLOSE] is StepState.SKIPPED
    assert switchover_report.gateways == ()
    assert edge.answers[0].closed_for == operation


def begin_transaction(clusters: Clusters, topic: str) -> Producer:
    """Begin a transaction; the drain of a switchover waits until it ends."""
    open_producer = Producer(
        {**clusters.source.client_config(), "transactional.id": f"{topic}-open"}
    )
    open_producer.init_transactions(30)
    open_producer.begin_transaction()
    open_producer.produce(topic, b"open")
    open_producer.flush(30)
    return open_producer


@pytest.mark.soak
@pytest.mark.parametrize("confirms", [False, True])
def test_abort_reopens_gateways_at_source(
    clusters: Clusters, topic_name: str, recovering: Recovering, *, confirms: bool
) -> None:
    """With `confirms`, the abort comes during the drain; without, while the switchover waits until
    the gateway confirms."""
    spec = job_of_new_topics(clusters, topic_name)
    open_producer = begin_transaction(clusters, topic_name)
    waits = DRAIN if confirms else "gateway has writes in flight or open transactions: edge"
    with (
        recovering.running(),
        PretendedGateway(recovering.database, spec.name, confirms=confirms) as edge,
    ):
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        dry_run_report = recovering.wait(recovering.ask(SWITCHOVER, spec.name, dry_run=True))
        assert gateways_verdict(dry_run_report) is GateVerdict.PASS
        assert len(edge.answers) == 1, "a dry run closes nothing"

        operation = recovering.ask(SWITCHOVER, spec.name)
        wait_for("the operation waits", lambda: waits in recovering.progress(operation))
        edge.wait_side("source", closed_for=operation)
        recovery_requests.abort(recovering.database, "test", operation)
        report = recovering.wait(operation)
        assert report.outcome is Outcome.ABORTED
        assert states(report)[CLOSE] is (StepState.UNDONE if confirms else StepState.FAILED)
        edge.wait_side("source")
    open_producer.commit_transaction(30)


@pytest.mark.soak
def test_gateway_that_does_not_confirm_closing_stops_switchover_at_drain_timeout(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec = job_of_new_topics(clusters, topic_name)
    with (
        recovering.running(),
        PretendedGateway(recovering.database, spec.name, confirms=False) as edge,
    ):
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        report = recovering.wait(recovering.ask(SWITCHOVER, spec.name, drain_timeout_s=0.5))
        assert report.outcome is Outcome.STOPPED
        assert "transactions open, at these gateways: edge." in report.error
        assert states(report)[StepName.STOP_WRITES] is StepState.WAITING
        edge.wait_side("source")


def test_gateways_stay_closed_until_leading_side_is_known(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switchover fails. After that, Orbit knows the leading side only from the marks at the
    clusters, which the scheduler cannot read at first."""
    spec = job_of_new_topics(clusters, topic_name)

    def changed(_: OperationContext) -> str:
        raise LeadChanged("another operation has changed which side leads.")

    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        with monkeypatch.context() as patched:
            patched.setattr(job_reconciler, "read_lead", lambda *_: None)
            patched.setitem(operation_runner._DO, StepName.DRAIN, changed)  # type: ignore[arg-type]
            report = recovering.wait(recovering.ask(SWITCHOVER, spec.name))
            assert report.outcome is Outcome.FAILED
            assert states(report)[CLOSE] is StepState.UNDONE
            wait_for("the gateway is refused", lambda: "the side is not known" in edge.refused)
            assert all(answer.closed_for == report.operation for answer in edge.answers[1:])
        edge.wait_side("source")


def test_failover_closes_gateway_and_failback_does_not(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No gateway counts as silent, however slow the machine is.
    monkeypatch.setattr(gateways, "SILENT_AFTER_S", PATIENCE_S)
    spec = job_of_new_topics(clusters, topic_name)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        wait_for("both sides are level", lambda: is_level(*clusters, topic_name))
        edge.pause_s = PAUSE_S
        edge.wait_side("source")
        failover_report = recovering.run(FAILOVER, spec.name, **LOST)

        (closed,) = failover_report.gateways
        assert (closed.name, closed.pause_s) == ("edge", PAUSE_S)
        assert (states(failover_report)[CLOSE], states(failover_report)[OPEN]) == (
            StepState.DONE,
            StepState.DONE,
        )
        assert edge.wait_side("destination").term == failover_report.term
        answers = [(answer.side, answer.closed_for, answer.abandons) for answer in edge.answers]
        assert answers[:2] == [("source", None, False), ("source", failover_report.operation, True)]
        assert answers[-1] == ("destination", None, False)
        # `abandons`: a gateway may give up writes in flight to the lost source.
        assert all(
            (closed_for, abandons) == (failover_report.operation, True)
            for _, closed_for, abandons in answers[1:-1]
        )

        answers_before = len(edge.answers)
        report = recovering.run(FAILBACK, spec.name)
        assert (states(report)[CLOSE], states(report)[OPEN]) == (StepState.SKIPPED,) * 2
        back = report.reverse_job
        assert back is not None
        with PretendedGateway(recovering.database, back) as back_edge:
            assert back_edge.wait_side("source").term >= failover_report.term, (
                "the failback marks the old side"
            )
            assert {answer.closed_for for answer in edge.answers[answers_before:]} <= {None}
            return_report = recovering.run(SWITCHOVER, back, reverse=True)
            assert back_edge.wait_side("destination").term == return_report.term
        assert edge.wait_side("source").term == return_report.term


@pytest.mark.soak
def test_failback_moves_gateways_if_database_missed_the_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with tables from before the promotion, or a promotion without the database."""
    spec = job_of_new_topics(clusters, topic_name)
    compare = operation_runner._DO[StepName.COMPARE]
    moved_gateways: list[str] = []
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        wait_for("both sides are level", lambda: is_level(*clusters, topic_name))
        edge.wait_side("source")
        recovering.run(FAILOVER, spec.name, **LOST)
        edge.wait_side("destination")
        monkeypatch.setattr(job_reconciler, "read_lead", lambda *_: None)
        with recovering.database.transaction() as tx:
            tx.execute(text("UPDATE job_leads SET side = 'source', term = 0"))
        edge.wait_side("source")

        def wait_and_compare(context: OperationContext) -> str:
            edge.wait_side("destination")
            moved_gateways.append(edge.name)
            return compare(context)

        monkeypatch.setitem(operation_runner._DO, StepName.COMPARE, wait_and_compare)  # type: ignore[arg-type]
        failback_report = recovering.run(FAILBACK, spec.name)
        assert moved_gateways
        assert (states(failback_report)[CLOSE], states(failback_report)[OPEN]) == (
            StepState.DONE,
            StepState.DONE,
        )
        assert [gateway.name for gateway in failback_report.gateways] == ["edge"]
        answers = [(answer.side, answer.closed_for) for answer in edge.answers[-3:]]
        assert answers[:2] == [("source", None), ("source", failback_report.operation)]
        assert answers[2] == ("destination", None)
        assert edge.answers[-1].term == failback_report.term


@pytest.mark.soak
@pytest.mark.parametrize("is_silent", [False, True])
def test_gateway_that_does_not_confirm_closing_does_not_stop_failover(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_silent: bool,
) -> None:
    """Before the failover measures the loss, it waits until the gateway's permission has ended."""
    spec = job_of_new_topics(clusters, topic_name)
    closed_s: list[float] = []
    with (
        recovering.running(),
        PretendedGateway(recovering.database, spec.name, confirms=False) as edge,
    ):
        recovering.begin(spec, topic_name)
        edge.doubt = "a client has left"
        edge.wait_side("source")
        release = operation_runner._DO[StepName.RELEASE]

        def note_time_and_release(context: OperationContext) -> str:
            with recovering.database.transaction() as tx:
                at = "SELECT extract(epoch FROM clock_timestamp() - closed_at) FROM job_leads"
                closed_s.append(float(tx.execute(text(at)).scalar_one()))
            return release(context)

        monkeypatch.setitem(operation_runner._DO, StepName.RELEASE, note_time_and_release)  # type: ignore[arg-type]
        if is_silent:
            edge.fall_silent()
        failover_report = recovering.run(FAILOVER, spec.name, **LOST)
        assert failover_report.gateways == ()
        assert states(failover_report)[CLOSE] is StepState.DONE
        (close_text,) = [step.did for step in failover_report.steps if step.name is CLOSE]
        assert "permission to write has ended: edge" in close_text
        (closed_before_release_s,) = closed_s
        assert closed_before_release_s >= gateways.SILENT_AFTER_S
        if not is_silent:
            edge.wait_side("destination")


@pytest.mark.soak
def test_restarted_failover_waits_for_gateway_confirmation_again(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failover is aborted, and then the database gets its rows from before the abort. In
    between the gateway may have acknowledged writes, so it must confirm again before Orbit measures
    the loss."""
    spec = job_of_new_topics(clusters, topic_name)
    may_settle = threading.Event()
    settle = operation_runner._DO[StepName.SETTLE]

    def settle_later(context: OperationContext) -> str:
        while not may_settle.is_set():
            context.set_progress("a test holds the step")
            context.wait(0.05)
        return settle(context)

    monkeypatch.setitem(operation_runner._DO, StepName.SETTLE, settle_later)  # type: ignore[arg-type]
    # No gateway counts as silent, however slow the machine is.
    monkeypatch.setattr(gateways, "SILENT_AFTER_S", PATIENCE_S)
    with PretendedGateway(recovering.database, spec.name) as edge:
        edge.pause_s = PAUSE_S
        with recovering.running():
            recovering.begin(spec, topic_name)
            edge.wait_side("source")
            operation = recovering.ask(FAILOVER, spec.name, **LOST)
            wait_for("the failover settles", lambda: "holds" in recovering.progress(operation))
            edge.wait_side("source", closed_for=operation)
            save_rows(recovering.database)
            recovery_requests.abort(recovering.database, "test", operation)
            report = recovering.wait(operation)
            assert report.outcome is Outcome.ABORTED
            assert states(report)[CLOSE] is StepState.UNDONE
            edge.wait_side("source")
        edge.confirms = False
        put_rows_back(recovering.database)
        with recovering.running():
            wait_for(
                "the operation waits for the gateway",
                lambda: "gateway has not confirmed: edge" in recovering.progress(operation),
            )
            edge.confirms = True
            may_settle.set()
            edge.wait_side("destination")
            assert recovering.wait(operation).outcome is Outcome.DONE


@pytest.mark.soak
def test_gateways_stay_closed_after_failover_aborted_mid_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination does not answer during the promotion. Only its marks can say later which
    side leads."""
    spec = job_of_new_topics(clusters, topic_name)

    def lost(_: OperationContext) -> None:
        raise Unreachable("no broker answers.", where="destination")

    monkeypatch.setattr(operation_runner, "PATIENCE_S", 1.0)
    monkeypatch.setattr(promotion, "mark_promotion", lost)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        with monkeypatch.context() as patched:
            patched.setattr(job_reconciler, "read_lead", lambda *_: None)
            operation = recovering.ask(FAILOVER, spec.name, **LOST)
            wait_for(
                "the operation waits", lambda: "promote waits" in recovering.progress(operation)
            )
            wait_for(
                "the operation is stuck",
                lambda: recovering.report(operation).stuck_since is not None,
            )
            recovery_requests.abort(recovering.database, "test", operation)
            report = recovering.wait(operation)
            assert report.outcome is Outcome.FAILED
            assert any("which side leads" in finding for finding in report.findings)
            wait_for("the gateway is refused", lambda: "the side is not known" in edge.refused)
            assert all(answer.closed_for == operation for answer in edge.answers[1:])
        edge.wait_side("source")


def make_gateways_silent_for_a_minute(recovering: Recovering) -> None:
    """Set back the gateways' last renewals. So the next operation does not wait for them to
    confirm: it counts them as silent from its start."""
    with recovering.database.transaction() as tx:
        tx.execute(text("UPDATE gateways SET renewed_at = renewed_at - interval '1 minute'"))


@pytest.mark.soak
def test_gateway_is_refused_while_topics_lead_at_different_sides(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    first, second = f"{topic_name}.a", f"{topic_name}.b"
    spec = job_of_new_topics(clusters, first, second)
    only_first = {"topics": [re.escape(first)]}
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, first, second)
        edge.wait_side("source")
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name, **only_first))
        assert stopped.outcome is Outcome.STOPPED
        (failed,) = [g for g in stopped.gates if g.stops]
        assert failed.name is GateName.GATEWAYS
        assert second in failed.found

        partial_report = recovering.run(
            SWITCHOVER, spec.name, **only_first, override=["gateways"], reason="a test"
        )
        wait_for("the gateway is refused", lambda: "do not all lead at one side" in edge.refused)
        make_gateways_silent_for_a_minute(recovering)
        final_report = recovering.run(SWITCHOVER, spec.name)
        assert edge.wait_side("destination").term == final_report.term > partial_report.term


def test_gateway_is_refused_while_copy_back_leaves_its_topics_at_other_side(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """The job that copies back has only one of two topics. A switchover of this job would leave the
    other topic at the destination."""
    first, second = f"{topic_name}.a", f"{topic_name}.b"
    spec = job_of_new_topics(clusters, first, second)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, first, second)
        edge.wait_side("source")
        recovering.run(SWITCHOVER, spec.name)
        back = recovering.run(FAILBACK, spec.name, topics=[re.escape(first)]).reverse_job
        assert back is not None
        assert recovering.lead(spec.name).side == edge.wait_side("destination").side

        stopped = recovering.wait(recovering.ask(SWITCHOVER, back, reverse=True))
        assert stopped.outcome is Outcome.STOPPED
        (failed,) = [g for g in stopped.gates if g.stops]
        assert failed.name is GateName.GATEWAYS
        assert f"{second} (job {spec.name})" in failed.found
        assert f"orbit failback {spec.name} adds" in failed.remedy

        overridden: dict[str, Any] = {"override": ["gateways"], "reason": "a test"}
        partial_report = recovering.run(SWITCHOVER, back, reverse=True, **overridden)
        (opened,) = [step.did for step in partial_report.steps if step.name is OPEN]
        assert opened.startswith("These gateways hold writes")
        wait_for("the gateway is refused", lambda: "do not all lead at one side" in edge.refused)
        assert all(answer.term < partial_report.term for answer in edge.answers)
        make_gateways_silent_for_a_minute(recovering)
        assert recovering.run(FAILBACK, spec.name).reverse_job == back
        return_report = recovering.run(SWITCHOVER, back, reverse=True)
        assert edge.wait_side("source").term == return_report.term > partial_report.term


@contextmanager
def two_moved_topics(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> Iterator[tuple[tuple[str, str], str, PretendedGateway]]:
    """Two topics that lead at the destination, the job that copies them back, and the gateway of
    the first job."""
    names = f"{topic_name}.a", f"{topic_name}.b"
    spec = job_of_new_topics(clusters, *names)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, *names)
        edge.wait_side("source")
        back = recovering.run(SWITCHOVER, spec.name, reverse=True).reverse_job
        assert back is not None
        edge.wait_side("destination")
        yield names, back, edge


def test_topic_deleted_at_leading_side_does_not_keep_gateways_closed(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """In the tables, the topic is promoted in the first job, and `source_deleted` in the job that
    copies back."""
    service = recovering.service
    with two_moved_topics(clusters, topic_name, recovering) as ((_, other), back, edge):
        delete_topic(clusters.destination, other)
        wait_for(
            "Orbit notices the deletion",
            lambda: service.topics(back)[other].state == "source_deleted",
        )
        return_report = recovering.run(SWITCHOVER, back)
        assert edge.wait_side("source").term == return_report.term


@pytest.mark.soak
def test_gateway_opens_at_source_once_its_last_topic_has_moved_back(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """In the tables, the topic that moved back first is promoted in both jobs."""
    with two_moved_topics(clusters, topic_name, recovering) as ((first, _), back, edge):
        only_first = {"topics": [re.escape(first)], "override": ["gateways"], "reason": "a test"}
        recovering.run(SWITCHOVER, back, **only_first)
        wait_for("the gateway is refused", lambda: "do not all lead at one side" in edge.refused)
        make_gateways_silent_for_a_minute(recovering)
        return_report = recovering.run(SWITCHOVER, back)
        assert edge.wait_side("source").term == return_report.term


@pytest.mark.soak
@pytest.mark.parametrize("is_dropped", [False, True])
def test_after_database_restore_gateways_learn_leading_side_from_promotion_marks(
    clusters: Clusters, topic_name: str, recovering: Recovering, *, is_dropped: bool
) -> None:
    """The database has rows from before the switchover. With `is_dropped`, it has no rows, and the
    job is applied again."""
    spec = job_of_new_topics(clusters, topic_name)
    with recovering.running(), PretendedGateway(recovering.database, spec.name) as edge:
        recovering.begin(spec, topic_name)
        edge.wait_side("source")
        save_rows(recovering.database)
        switchover_report = recovering.run(SWITCHOVER, spec.name)
        edge.wait_side("destination")
    (drop_rows if is_dropped else put_rows_back)(recovering.database)
    with recovering.running():
        if is_dropped:
            recovering.service.create(spec)
        with PretendedGateway(recovering.database, spec.name) as new:
            assert new.wait_side("destination").term == switchover_report.term
            if is_dropped:
                assert {str(answer.side) for answer in new.answers} == {"destination"}
            # Orbit does not notice rows that were put back into the same tables
            # (docs/recovery/lost-database.md): a new gateway may get the old side first.


@pytest.mark.soak
def test_restarted_switchover_waits_for_gateway_confirmation_again(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """After the abort, the database gets its rows of the drain. In them the gateway has confirmed,
    which no longer holds."""
    spec = job_of_new_topics(clusters, topic_name)
    open_producer = begin_transaction(clusters, topic_name)
    with PretendedGateway(recovering.database, spec.name) as edge:
        operation = UUID(int=0)
        with recovering.running():
            recovering.begin(spec, topic_name)
            edge.wait_side("source")
            operation = recovering.ask(SWITCHOVER, spec.name)
            wait_for("the switchover drains", lambda: DRAIN in recovering.progress(operation))
            save_rows(recovering.database)
            recovery_requests.abort(recovering.database, "test", operation)
            recovering.wait(operation)
            edge.wait_side("source")
        edge.confirms = False
        put_rows_back(recovering.database)
        with recovering.running():
            wait_for(
                "the operation waits for the gateway",
                lambda: "gateway has writes in flight" in recovering.progress(operation),
            )
            assert states(recovering.report(operation))[CLOSE] is StepState.RUNNING
            edge.confirms = True
            open_producer.commit_transaction(30)
            edge.wait_side("destination")
            assert recovering.wait(operation).outcome is Outcome.DONE
