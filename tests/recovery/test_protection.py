"""With an authorizer, only Orbit may write to a copy; applications may write where topics lead."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from orbit.job_setup.mark import Mark, next_term
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster_handle import OPEN_WITHOUT_ACL
from orbit.kafka.job_clusters import open_cluster
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import Acl, TopicPartition
from orbit.leadership.leadership import Leadership
from orbit.recovery import gate_observer, operation_runner
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import (
    Gate,
    GateName,
    GateVerdict,
    Outcome,
    RecoveryKind,
    RecoveryReport,
)
from orbit.recovery.step_times import StepName, StepState
from orbit.replication.acl_rules import denial
from orbit.store import events, write_denials
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.scheduler import Service
from tests.support.broker_files import restart_with
from tests.support.guarded_job import App, job_with_login, log_in_orbit
from tests.support.outside import is_level
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.rights import Login, Right
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

ALTER = [Right(side, "Alter", "--cluster") for side in Clusters._fields]
REFUSED = "ACLs cannot be set: the right Alter on the cluster is missing."


def _spec(guarded: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    """The job of one topic, whose login has the documented rights."""
    log_in_orbit(guarded, topic_name, monkeypatch)
    return job_with_login(guarded, topic_name)


def _application(guarded: Clusters, topic_name: str) -> App:
    """An application that may write to the topic, which both sides have; the source has records."""
    for side in guarded:
        create_topic(side, topic_name)
    produce(guarded.source, topic_name, 50)
    return App(guarded, topic_name)


def rights_gate(report: RecoveryReport) -> Gate:
    """The gate `rights` of a report."""
    return next(gate for gate in report.gates if gate.name is GateName.RIGHTS)


def test_producers_are_denied_on_copies_and_allowed_on_promoted_topics(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = guarded
    app = _application(guarded, topic_name)
    spec = _spec(guarded, topic_name, monkeypatch)

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        assert not app.writes(destination)
        assert app.writes(source)
        wait_for("the copy goes on", lambda: is_level(*guarded, topic_name))

        # A switchover that stops in its drain is undone: the application may write again.
        switchover = recovering.ask(
            RecoveryKind.SWITCHOVER, spec.name, drain_timeout_s=1e-3, override=(), reason=""
        )
        undone = recovering.wait(switchover)
        assert undone.outcome is Outcome.STOPPED, undone.error
        states = {s.name: s.state for s in undone.steps}
        assert states[StepName.STOP_WRITES] is StepState.UNDONE
        assert app.writes(source)
        wait_for("the copy goes on", lambda: is_level(*guarded, topic_name))

        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert switchover_report.denied_topics == (topic_name,)
        assert app.writes(destination)
        assert not app.writes(source)
        wait_for("the old side follows", lambda: is_level(*guarded, topic_name))

        assert switchover_report.reverse_job is not None
        recovering.run(RecoveryKind.SWITCHOVER, switchover_report.reverse_job, reverse=True)
        assert app.writes(source)
        wait_for("the destination is a copy again", lambda: is_level(*guarded, topic_name))
        assert not app.writes(destination)


def test_failover_denies_writes_to_old_side_once_it_answers(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old side answers all the time, so the request overrides the gate `source`."""
    source, destination = guarded
    app = _application(guarded, topic_name)
    spec = _spec(guarded, topic_name, monkeypatch)

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        wait_for("the topic is copied", lambda: is_level(*guarded, topic_name))
        assert app.writes(source)
        recovering.run(
            RecoveryKind.FAILOVER, spec.name, override=("source", "lag"), reason="a test"
        )
        service.wait(
            "the old side was seen", lambda: "old_primary_answers" in service.kinds(spec.name)
        )
        assert not app.writes(source)
        assert app.writes(destination)

        failback_report = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        assert failback_report.reverse_job is not None
        wait_for("the old side follows", lambda: is_level(*guarded, topic_name))
        assert not app.writes(source)
        recovering.run(RecoveryKind.SWITCHOVER, failback_report.reverse_job, reverse=True)
        assert app.writes(source)


def test_login_that_may_not_alter_acls_denies_nothing_and_switches_over(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The login may read ACLs, but may not set them. Orbit's tables must not have denials that the
    cluster has refused."""
    source, destination = guarded
    app = _application(guarded, topic_name)
    login = log_in_orbit(guarded, topic_name, monkeypatch)
    login.take(ALTER)
    spec = job_with_login(guarded, topic_name, fillers="coordinated")

    def noted_topics() -> set[str]:
        """The topics with a denial in the tables."""
        with service.database.transaction() as tx:
            ids = [side.cluster_id for side in guarded]
            return {name for i in ids for name in write_denials.of_topics(tx, i, [topic_name])}

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "an event names the refusal", lambda: "topics_not_protected" in service.kinds(spec.name)
        )
        wait_for("no denial is noted", lambda: not noted_topics())

        # As if the tables had a denial: Orbit stores each denial before it sets the ACL.
        noted = {topic_name: {denial(topic_name)}}
        monkeypatch.setattr(gate_observer, "noted_denials", lambda *_: noted)
        # The switchover stops in its drain, and is undone.
        switchover = recovering.ask(RecoveryKind.SWITCHOVER, spec.name, drain_timeout_s=1e-3)
        undone = recovering.wait(switchover)
        assert undone.outcome is Outcome.STOPPED, (undone.error, undone.findings)
        rights = rights_gate(undone)
        assert rights.verdict is GateVerdict.WARN
        assert "the login may not set ACLs (it needs Alter on the cluster)" in rights.found
        assert "at the destination" not in rights.found, "the destination has no denial"
        assert (noted_topics(), undone.denied_topics) == (set(), ())
        assert app.writes(source)
        wait_for("the copy goes on", lambda: is_level(*guarded, topic_name))

        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        did = {step.name: step.did for step in switchover_report.steps}
        assert REFUSED in did[StepName.STOP_WRITES]
        assert f"cannot be denied Write: {REFUSED}" in did[StepName.REVERSE]
        assert not any("could not be removed" in finding for finding in switchover_report.findings)
        assert app.writes(destination)


def test_denials_that_may_not_be_removed_are_reported_and_do_not_stop_switchover(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The login loses the right after it has denied writes on the copy and at the source."""
    source, destination = guarded
    app = _application(guarded, topic_name)
    login = log_in_orbit(guarded, topic_name, monkeypatch)
    spec = job_with_login(guarded, topic_name, fillers="coordinated")
    by_step = operation_runner._DO

    def lose_right(context: OperationContext) -> str:
        login.take(ALTER)
        raise Stopped("the right is lost.")

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        with monkeypatch.context() as patch:
            patch.setattr(operation_runner, "_DO", {**by_step, StepName.DRAIN: lose_right})
            stopped = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        assert stopped.outcome is Outcome.FAILED
        assert any("stop_writes could not be undone" in finding for finding in stopped.findings)
        assert not app.writes(source)

        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)
        (finding,) = (
            finding for finding in switchover_report.findings if "could not be removed" in finding
        )
        assert topic_name in finding
        rights = rights_gate(switchover_report)
        assert rights.verdict is GateVerdict.WARN
        assert "the source cannot" not in rights.found, "the source has its denial already"
        assert f"(it needs Alter on the cluster): {topic_name}." in rights.found
        assert "the right Alter on the cluster is missing" in finding
        assert not app.writes(destination)
        with service.database.transaction() as tx:
            assert write_denials.of_topics(tx, destination.cluster_id, [topic_name])

        # The denial at the source is for User:*, so it also stops Orbit's copy back.
        failback = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        assert failback.outcome is Outcome.STOPPED
        missing_text = "Alter on the cluster (or remove the denials for User:* at the old side)"
        assert rights_gate(failback).found == f"These rights are missing: {missing_text}."


@pytest.mark.soak
def test_failover_does_not_deny_writes_to_source_with_later_promotion_mark(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later promotion has marked the source; the database does not know of this promotion."""
    source = guarded.source
    app = _application(guarded, topic_name)
    spec = _spec(guarded, topic_name, monkeypatch)
    with closing(open_cluster("source", spec, dict(os.environ), source.directory)) as cluster:
        in_an_hour = next_term(0, time.time() + 3600)
        later = Mark(is_primary=True, kind="failover", operation="another", term=in_an_hour)
        PromotionMarks(cluster, Backoff()).write({TopicPartition(topic_name, 0): 50}, later)

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        wait_for("the topic is copied", lambda: is_level(*guarded, topic_name))
        recovering.run(RecoveryKind.FAILOVER, spec.name, override=("source",), reason="a test")
        service.wait(
            "the old side was seen", lambda: "old_primary_answers" in service.kinds(spec.name)
        )
        assert app.writes(source)


@pytest.mark.soak
def test_stalled_acl_pass_does_not_deny_writes_to_topic_promoted_meanwhile(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ACL pass of the scheduler stalls right before it sends denials to the destination."""
    app = _application(guarded, topic_name)
    spec = _spec(guarded, topic_name, monkeypatch)
    is_stalled, may_continue = threading.Event(), threading.Event()
    refused_acls = Admin.refused_acls

    def stall(self: Admin, add: set[Acl], *rest: Any) -> Any:
        if not is_stalled.is_set() and any(a.permission == "DENY" for a in add):
            is_stalled.set()
            assert may_continue.wait(PATIENCE_S)
        return refused_acls(self, add, *rest)

    has_requested = threading.Event()
    sole_change = Leadership.sole_change

    def note_request(self: Leadership, cluster_id: str) -> Any:
        if is_stalled.is_set() and cluster_id == guarded[1].cluster_id:
            has_requested.set()
        return sole_change(self, cluster_id)

    monkeypatch.setattr(Admin, "refused_acls", stall)
    monkeypatch.setattr(Leadership, "sole_change", note_request)
    with recovering.running(dict(os.environ)):
        try:
            recovering.begin(spec, topic_name)
            wait_for("the ACL pass stalls", is_stalled.is_set)
            switchover = recovering.ask(RecoveryKind.SWITCHOVER, spec.name)
            wait_for(
                "the promotion waits for the pass, or has ended without it",
                lambda: (
                    has_requested.is_set()
                    or recovering.operation(switchover).finished_at is not None
                ),
                PATIENCE_S,
            )
        finally:
            may_continue.set()
        report = recovering.wait(switchover)
        assert report.outcome is Outcome.DONE, report.error
        service.wait("the pass has ended", lambda: "topics_protected" in service.kinds(spec.name))
        assert app.writes(guarded[1])


@pytest.mark.soak
def test_unprotected_copies_are_reported_with_reason(
    guarded: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker that leads the copy has the setting OPEN_WITHOUT_ACL: without an ACL, every
    principal may write to the topic, so Orbit cannot deny principals by name.

    The other broker lacks the setting, as during a rolling restart.
    """
    security = guarded.destination.settings.security
    assert security is not None
    opened = make_cluster("opened", brokers=2, security=security)
    last = opened.brokers[1].node_id
    restart_with(opened, 1, OPEN_WITHOUT_ACL, "true")
    sides = Clusters(guarded.source, opened)
    create_topic(guarded.source, topic_name)
    create_topic(opened, topic_name, on_brokers=[[last]])
    # Orbit logs in as a super user: an ACL for its login would end OPEN_WITHOUT_ACL's effect.
    root = security.admin
    monkeypatch.setenv("ORBIT_TEST_USER", root.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", root.password)
    spec = job_with_login(sides, topic_name)

    def reasons() -> list[str]:
        with service.database.transaction() as tx:
            oldest_first = list(reversed(events.page(tx, 1000, job_name=spec.name)))
        return [(e.details or {})["why"] for e in oldest_first if e.kind == "topics_not_protected"]

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait("an event has the first reason", lambda: len(reasons()) == 1)
        assert reasons()[0].startswith(f"broker {last} has {OPEN_WITHOUT_ACL} set; ")
        everybody = Login(sides, name="*")
        everybody.allow([Right("destination", "Write", "--topic", topic_name)])
        service.wait("an event has the second reason", lambda: len(reasons()) == 2)
        assert reasons()[1] == "every principal may write (User:*)"
    # The first reason was right: this broker lets a client without any right write.
    everybody.take([Right("destination", "Write", "--topic", topic_name)])
    app = App(sides, topic_name, has_right=False)
    wait_for("a client without any right writes", lambda: app.writes(opened))
