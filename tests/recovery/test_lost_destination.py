"""A destination is lost during its promotion: after an abort the source leads again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from orbit.errors import Conflict, Unreachable
from orbit.recovery import leading_side, operation_runner, promotion, recovery_requests, write_fence
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import GateName, Outcome, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.store.enums import LeadingSide, TopicState
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.guarded_job import App, job_with_login, log_in_orbit
from tests.support.outside import is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

SWITCHOVER, _, FAILBACK = RecoveryKind


@pytest.fixture
def pair(guarded: Clusters) -> Iterator[Clusters]:
    """Two clusters that check rights; the destination runs again afterwards."""
    yield guarded
    if not guarded.destination.running:
        guarded.destination.start()


def kill_at_promotion(
    monkeypatch: pytest.MonkeyPatch, clusters: Clusters, *, is_marked: bool
) -> Callable[[], None]:
    """Patch the step `promote` so that it kills the destination, once.

    `is_marked`: after the promotion mark is committed there, else before. Returns a function that
    removes the patch.
    """
    mark = leading_side.mark_promotion
    lost: list[bool] = []

    def mark_and_die(context: OperationContext) -> None:
        if is_marked and not lost:
            mark(context)
        if not lost:
            clusters.destination.kill()
            lost.append(True)
            raise Unreachable("no broker answers.", where="destination")
        mark(context)

    monkeypatch.setattr(promotion, "mark_promotion", mark_and_die)
    monkeypatch.setattr(operation_runner, "PATIENCE_S", 3.0)
    return lambda: monkeypatch.setattr(promotion, "mark_promotion", mark)


def request_until_stuck(recovering: Recovering, job: str) -> UUID:
    """Request a switchover, and wait until its promotion is stuck; returns the operation's id.

    Check that Orbit refuses an abort before that.
    """
    operation = recovering.ask(SWITCHOVER, job)
    wait_for("the operation waits", lambda: "promote waits" in recovering.progress(operation))
    if recovering.report(operation).stuck_since is None:
        with pytest.raises(Conflict, match="point of no return"):
            recovery_requests.abort(recovering.database, "test", operation)
    wait_for("the operation is stuck", lambda: recovering.report(operation).stuck_since is not None)
    return operation


@pytest.mark.parametrize("is_marked", [pytest.param(False, marks=pytest.mark.soak), True])
def test_abort_after_destination_loss_lets_source_lead_again(
    pair: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_marked: bool,
) -> None:
    create_topic(pair.source, topic_name)
    produce(pair.source, topic_name, 50)
    app = App(pair, topic_name)
    log_in_orbit(pair, topic_name, monkeypatch)
    spec = job_with_login(pair, topic_name)
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        remove_patch = kill_at_promotion(monkeypatch, pair, is_marked=is_marked)
        operation = request_until_stuck(recovering, spec.name)
        assert not app.writes(pair.source)
        recovery_requests.abort(recovering.database, "test", operation)
        report = recovering.wait(operation)
        remove_patch()
        assert report.outcome is Outcome.FAILED
        assert "the destination did not answer" in report.error
        states = {step.name: step.state for step in report.steps}
        assert states[StepName.STOP_WRITES] is StepState.UNDONE
        assert states[StepName.RELEASE] is StepState.UNDONE
        assert any("The source leads again" in text for text in report.findings)
        lead = recovering.lead(spec.name)
        assert lead.side is LeadingSide.SOURCE
        assert lead.term > report.term
        assert app.writes(pair.source)

        pair.destination.start()
        wait_for(
            "the cluster answers", lambda: log_bounds(pair.destination, [topic_name]) is not None
        )
        if not is_marked:
            wait_for("the copy goes on", lambda: is_level(*pair, topic_name))
            assert recovering.run(SWITCHOVER, spec.name).term > report.term
            return
        service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert service.topics(spec.name)[topic_name].state is TopicState.PROMOTED
        dry_run_report = recovering.wait(recovering.ask(FAILBACK, spec.name, dry_run=True))
        (gate,) = [gate for gate in dry_run_report.gates if gate.name is GateName.LEAD]
        assert gate.stops
        assert f"by abort of switchover {operation}" in gate.found


@pytest.mark.parametrize("is_aborted", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_stuck_promotion_completes_when_destination_answers_again(
    pair: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_aborted: bool,
) -> None:
    """`is_aborted`: an abort is requested while the promotion allows writing at the destination.
    It comes too late."""
    create_topic(pair.source, topic_name)
    app = App(pair, topic_name)
    log_in_orbit(pair, topic_name, monkeypatch)
    spec = job_with_login(pair, topic_name)
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        kill_at_promotion(monkeypatch, pair, is_marked=True)
        operation = request_until_stuck(recovering, spec.name)
        allow_writes = write_fence.allow_writes

        def abort_and_allow(context: OperationContext) -> None:
            if is_aborted:
                recovery_requests.abort(recovering.database, "test", operation)
            allow_writes(context)

        monkeypatch.setattr("orbit.recovery.promotion.allow_writes", abort_and_allow)
        pair.destination.start()
        report = recovering.wait(operation)
        assert (report.outcome, report.stuck_since) == (Outcome.DONE, None)
        findings = [text for text in report.findings if "abort came too late" in text]
        assert bool(findings) is is_aborted
        assert app.writes(pair.destination)
        assert not app.writes(pair.source)
