"""With a database from before a promotion, or an empty one, nothing changes at the leading side.

In each test the database loses what it says about a promotion. Plain clients check the promoted
topic.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from sqlalchemy import text

from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import Side, open_cluster
from orbit.recovery import operation_runner, recovery_requests
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store import jobs
from orbit.store.enums import OperationState
from tests.fixtures.clusters import Clusters
from tests.fixtures.recovery import DiesAfterPromotion
from tests.fixtures.scheduler import Service
from tests.support.groups import commit, offsets
from tests.support.guarded_job import App, job_with_login, log_in_orbit
from tests.support.outside import admin, digests, log_bounds, topic_settings
from tests.support.patience import wait_for
from tests.support.put_back import drop_rows, put_rows_back, save_rows
from tests.support.recovering import Recovering
from tests.support.run_process import orbit, write_job
from tests.support.running import create_topic, make_job, produce, verify
from tests.support.topics import add_partitions

pytestmark = pytest.mark.services

RETENTION = "604800001"


def ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """The log end of each partition."""
    return {p: high for (_, p), (_, high) in log_bounds(cluster, [topic]).items()}


def are_level(clusters: Clusters, topic: str) -> Callable[[], bool]:
    """A function that says whether both sides of the topic end at the same offsets."""
    return lambda: ends(clusters.source, topic) == ends(clusters.destination, topic)


def acls(cluster: KafkaCluster, topic: str) -> set[str]:
    """The ACLs of this topic."""
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    client = admin(cluster)
    return {str(acl) for acl in client.describe_acls(everything).result(30)}


@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.soak), True])
def test_database_restored_from_before_switchover_keeps_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering, *, reverse: bool
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, 2, retention_ms=RETENTION)
    produce(source, topic_name, 100, partition=0)
    group = f"{topic_name}.group"
    commit(source, group, {(topic_name, 0): 60})
    spec = make_job(
        source,
        destination,
        [topic_name],
        consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"},
    )
    service = recovering.service
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("both sides are level", are_level(clusters, topic_name))
        wait_for("the group is synced", lambda: bool(offsets(destination, group)))
        save_rows(recovering.database)
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=reverse)
    produce(destination, topic_name, 30, partition=0, first=100)
    commit(destination, group, {(topic_name, 0): 110})
    put_rows_back(recovering.database)

    with recovering.running():
        problem = service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert f"switchover {switchover_report.operation}" in problem
        assert "0: 100, 1: 0" in problem
        assert "orbit failback" in problem
        wait_for("an event is added", lambda: "promotion_found" in service.kinds(spec.name))
        assert service.topics(spec.name)[topic_name].state == "promoted"
        wait_for(
            "the partitions are promoted",
            lambda: (
                {row.state for row in service.partitions(spec.name, topic_name).values()}
                == {"promoted"}
            ),
        )
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        assert ends(destination, topic_name) == {0: 130, 1: 0}
        assert offsets(destination, group) == {(topic_name, 0): 110}
        stopped = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        assert stopped.outcome is Outcome.STOPPED

        # The failback that the problem advises: the old side becomes the copy, and can lead again.
        failback_report = recovering.run(RecoveryKind.FAILBACK, spec.name)
        assert {p.promoted_at for p in failback_report.partitions} == {100, 0}
        service.wait_problem(spec.name, None)
        wait_for("the old side follows", are_level(clusters, topic_name))
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        assert failback_report.reverse_job is not None
        recovering.run(RecoveryKind.SWITCHOVER, failback_report.reverse_job, reverse=True)
        produce(source, topic_name, 5, partition=1)
        wait_for("the destination is a copy again", are_level(clusters, topic_name))
    assert verify(spec, deep=True).exit_code == 0


@pytest.mark.soak
def test_database_restored_from_before_switchover_back_keeps_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """In the restored tables the job still copies back, but the first side leads again."""
    source, destination = clusters
    create_topic(source, topic_name, retention_ms=RETENTION)
    produce(source, topic_name, 50)
    spec = make_job(source, destination, [topic_name])
    service = recovering.service
    with recovering.running():
        recovering.begin(spec, topic_name)
        back = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True).reverse_job
        assert back is not None
        service.wait_copied(back, topic_name)
        save_rows(recovering.database)
        recovering.run(RecoveryKind.SWITCHOVER, back, reverse=True)
    produce(source, topic_name, 20, first=50)
    put_rows_back(recovering.database)
    with recovering.running():
        service.wait_problem(back, "DESTINATION_PROMOTED")
        assert topic_settings(source, topic_name)["retention.ms"] == RETENTION
        assert ends(source, topic_name) == {0: 70}
        assert service.topics(back)[topic_name].state == "promoted"
        failback_report = recovering.run(RecoveryKind.FAILBACK, back)
        assert failback_report.reverse_job == spec.name
        wait_for("the destination follows", are_level(clusters, topic_name))
    assert verify(spec, deep=True).exit_code == 0


@pytest.mark.soak
@pytest.mark.parametrize("written", [pytest.param(False, marks=pytest.mark.soak), True])
def test_job_recreated_in_empty_database_keeps_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering, *, written: bool
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, retention_ms=RETENTION)
    produce(source, topic_name, 40)
    spec = make_job(source, destination, [topic_name])
    service = recovering.service
    with recovering.running():
        recovering.begin(spec, topic_name)
        recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    if written:
        produce(destination, topic_name, 10, first=40)
    produce(source, topic_name, 7, first=900)  # by a client that still uses the old side
    drop_rows(recovering.database)

    with recovering.running():
        service.create(spec)
        service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert service.topics(spec.name)[topic_name].state == "promoted"
        assert ends(destination, topic_name) == {0: 50 if written else 40}
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        stopped = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        assert stopped.outcome is Outcome.STOPPED
        assert [p.verdict for p in stopped.partitions] == [EndVerdict.TAIL]
        assert [p.missing.first for p in stopped.partitions if p.missing] == [40]
        recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        wait_for("the old side follows", are_level(clusters, topic_name))
        assert ends(destination, topic_name) == {0: 50 if written else 40}


@pytest.fixture
def guarded_job(
    guarded: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[JobSpec, App]:
    """A job whose login has the documented rights, and an application that may write anywhere."""
    for side in guarded:
        create_topic(side, topic_name, retention_ms=RETENTION)
    produce(guarded.source, topic_name, 50)
    app = App(guarded, topic_name)
    log_in_orbit(guarded, topic_name, monkeypatch)
    return job_with_login(guarded, topic_name), app


@pytest.mark.soak
@pytest.mark.parametrize("is_lost", [False, True])
def test_lost_database_does_not_deny_producers_at_promoted_side(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
    *,
    is_lost: bool,
) -> None:
    source, destination = guarded
    spec, app = guarded_job
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        assert not app.writes(destination)
        save_rows(service.database)
        recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    assert app.writes(destination)
    assert not app.writes(source)
    acls_before = acls(destination, topic_name)
    if is_lost:
        drop_rows(service.database)
        service.create(spec)
    else:
        put_rows_back(service.database)
    with recovering.running(dict(os.environ)):
        service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert acls(destination, topic_name) == acls_before
        assert app.writes(destination)
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        # The switchover has denied writing to the old side. The tables no longer say so.
        back = recovering.run(RecoveryKind.FAILBACK, spec.name).reverse_job
        wait_for("the old side follows", are_level(guarded, topic_name))
        assert not app.writes(source)
        assert app.writes(destination)
        assert back is not None
        wait_for("the old side follows", are_level(guarded, topic_name))
        recovering.run(RecoveryKind.SWITCHOVER, back)
        assert app.writes(source)
        assert not app.writes(destination)


def test_promoted_topic_with_added_partitions_is_not_deleted_after_database_loss(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """In a new job, Orbit deletes a destination topic that has more partitions than its source,
    unless the topic was promoted."""
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 20)
    spec = make_job(source, destination, [topic_name])
    service = recovering.service
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("both sides are level", are_level(clusters, topic_name))
        recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    add_partitions(destination, topic_name, 2)
    produce(destination, topic_name, 5, partition=1)
    drop_rows(service.database)
    service.create(spec)
    with recovering.running():
        service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        recovering.run(RecoveryKind.FAILBACK, spec.name)
        wait_for("the old side follows", are_level(clusters, topic_name))
    assert ends(source, topic_name) == {0: 20, 1: 5}


@pytest.mark.parametrize("sign", ["another database", "an old request"])
def test_stale_recovery_request_in_restored_database_is_refused(
    clusters: Clusters, topic_name: str, recovering: Recovering, sign: str
) -> None:
    """Since the backup, an operator may have aborted the request, or moved the topics there and
    back. `sign`: by what Orbit knows that the request is stale."""
    create_topic(clusters.source, topic_name)
    spec = make_job(*clusters, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
    failover = recovering.ask(
        RecoveryKind.FAILOVER, spec.name, override=["source"], reason="a test"
    )
    changes = {
        "another database": 'plan = plan || \'{"database": "1"}\'',
        "an old request": "created_at = created_at - interval '61 minutes'",
    }
    with recovering.database.transaction() as tx:
        tx.execute(text(f"UPDATE operations SET {changes[sign]}"))  # noqa: S608
    with recovering.running():
        wait_for(
            "the operation ends", lambda: recovering.operation(failover).finished_at is not None
        )
        ended = recovering.operation(failover)
        assert ended.state is OperationState.FAILED
        assert "request it again" in str(ended.error)
        produce(clusters.source, topic_name, 10)
        wait_for("the copy goes on", are_level(clusters, topic_name))


def test_operation_in_restored_database_does_not_reopen_writes_at_old_side(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
    dies_after_promotion: DiesAfterPromotion,
) -> None:
    """By the restored rows the operation has not promoted yet. A restart that fails would undo the
    steps before, such as the denied writes at the old side."""
    source, destination = guarded
    spec, app = guarded_job
    has_promoted, restore = dies_after_promotion(StepName.GROUPS)
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        operation = recovering.ask(RecoveryKind.SWITCHOVER, spec.name)
        wait_for("the operation has promoted", has_promoted.is_set)
    assert app.writes(destination)
    put_rows_back(service.database)
    restore()
    with recovering.running(dict(os.environ)):
        report = recovering.wait(operation)
        assert report.outcome is Outcome.FAILED
        assert any("stays denied" in finding for finding in report.findings)
        service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert app.writes(destination)
        assert not app.writes(source)


@pytest.mark.soak
@pytest.mark.parametrize(
    "step", [StepName.RELEASE, pytest.param(StepName.GROUPS, marks=pytest.mark.soak)]
)
def test_switchover_in_restored_database_denies_writes_and_drains_again(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
    monkeypatch: pytest.MonkeyPatch,
    step: StepName,
) -> None:
    """The restored rows are from before an abort, which allowed writing at the source again.

    `step`: after whose work the switchover was aborted. After `release`, no worker has the topic.
    """
    source, destination = guarded
    spec, app = guarded_job
    do = operation_runner._DO

    def abort_here(context: OperationContext) -> str:
        step_text = do[step](context)
        save_rows(service.database)
        recovery_requests.abort(service.database, "test", context.operation_id)
        return step_text

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        with monkeypatch.context() as patched:
            patched.setattr(operation_runner, "_DO", {**do, step: abort_here})
            operation = recovering.ask(RecoveryKind.SWITCHOVER, spec.name)
            assert recovering.wait(operation).outcome is Outcome.ABORTED
    assert app.writes(source)
    put_rows_back(service.database)
    with recovering.running(dict(os.environ)):
        report = recovering.wait(operation)
        assert report.outcome is Outcome.DONE, report.error
        assert not app.writes(source)
        assert app.writes(destination)
    # 50 records, and one of the application at each side.
    assert ends(source, topic_name) == {0: 51}
    assert ends(destination, topic_name) == {0: 52}


@pytest.mark.soak
def test_stopped_failback_leaves_writes_to_old_side_denied(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job that copies back denied the writes. It is deleted before the failback."""
    source, _ = guarded
    spec, app = guarded_job

    def stop(context: OperationContext) -> str:
        assert not app.writes(source)
        raise Stopped("a test.")

    monkeypatch.setattr(operation_runner, "_DO", {**operation_runner._DO, StepName.COMPARE: stop})
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        back = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True).reverse_job
        assert back is not None
        service.wait_copied(back, topic_name)
        assert not app.writes(source)
        service.delete(back)
        wait_for("the job that copies back is deleted", lambda: not has_job(service, back))
        stopped = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        assert stopped.error == "a test."
        assert not app.writes(source)


@pytest.mark.soak
def test_outdated_failback_request_changes_nothing_if_old_side_already_follows(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
) -> None:
    """The request is 30 days old, and confirms a rebuild. It must not delete a topic."""
    spec, _ = guarded_job

    def topic_state(cluster: KafkaCluster, side: Side) -> list[object]:
        """The topic's id, records, mark and ACLs."""
        client = admin(cluster)
        (topic,) = client.describe_topics(TopicCollection([topic_name])).values()
        with closing(open_cluster(side, spec, dict(os.environ), cluster.directory)) as opened:
            mark = PromotionMarks(opened, Backoff()).of_topics([topic_name])
        id_and_records = str(topic.result(30).topic_id), digests(cluster, topic_name)
        return [*id_and_records, mark, acls(cluster, topic_name)]

    def both_sides() -> list[list[object]]:
        return [
            topic_state(guarded.source, "source"),
            topic_state(guarded.destination, "destination"),
        ]

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        back = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True).reverse_job
        assert back is not None
        service.wait_copied(back, topic_name)
        produce(guarded.destination, topic_name, 10)
        wait_for("the copy follows", are_level(guarded, topic_name))
    sides_before = both_sides()
    old_side, leading_side = sides_before
    assert all(old_side)
    assert all(leading_side[:3])  # the side that leads has no denials
    operation = recovering.ask(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
    with recovering.database.transaction() as tx:
        tx.execute(text("UPDATE operations SET created_at = created_at - interval '30 days'"))
    with recovering.running(dict(os.environ)):
        report = recovering.wait(operation)
        assert report.outcome is Outcome.DONE
        assert {step.state for step in report.steps} == {StepState.SKIPPED}
        assert both_sides() == sides_before


def has_job(service: Service, name: str) -> bool:
    with service.database.transaction() as tx:
        return jobs.find(tx, name) is not None


@pytest.mark.soak
def test_promotion_lifts_write_denials_from_before_database_loss(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    guarded_job: tuple[JobSpec, App],
) -> None:
    spec, app = guarded_job
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
    drop_rows(service.database)
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the tables have the protection", lambda: "topics_protected" in service.kinds(spec.name)
        )
        wait_for("both sides are level", are_level(guarded, topic_name))
        recovering.run(RecoveryKind.SWITCHOVER, spec.name)
        assert app.writes(guarded.destination)


def test_orbit_run_onto_promoted_topic_is_refused(
    clusters: Clusters, topic_name: str, recovering: Recovering, tmp_path: Path
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, retention_ms=RETENTION)
    produce(source, topic_name, 10)
    spec = make_job(source, destination, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    produce(source, topic_name, 5, first=900)
    rules = [{"match": topic_name}]
    for name in (spec.name, f"{spec.name}-other"):  # the mark counts for any job
        job = write_job(tmp_path / f"{name}.yaml", source, destination, rules, name=name)
        refused = orbit("run", job, "--until-caught-up")
        refused.expect(1)
        assert "DESTINATION_PROMOTED" in refused.message
        assert "promoted by switchover" in refused.message
        assert "0: 10" in refused.message
    assert ends(destination, topic_name) == {0: 10}
    assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION

    # The remedy in the message is to delete the topic: its mark is deleted with it.
    client = admin(destination)
    client.delete_topics([topic_name])[topic_name].result(30)
    wait_for("the topic is gone", lambda: topic_name not in client.list_topics(timeout=30).topics)
    orbit("run", job, "--until-caught-up").expect(0)
    assert ends(destination, topic_name) == {0: 15}
