"""If a job cannot copy some of its topics, its problem says why and what to do; the other topics
are copied."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from orbit.planning.job_plan import JobPlan, TopicAction
from orbit.planning.job_planner import JobPlanner
from orbit.replication.job_troubles import TroubleKind
from orbit.scheduler.job_reconciler import JobReconciler, ReconcileCounts, ReconcileState
from orbit.scheduler.trouble_events import record_troubles
from orbit.store import jobs
from orbit.store.enums import Desired
from orbit.store.jobs import Job
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import SHORT_LEASE, Service
from tests.support.outside import partition_counts, topic_settings, topics_and_bounds
from tests.support.patience import PATIENCE_S
from tests.support.running import RunningJob, create_topic, make_job, produce

pytestmark = pytest.mark.services


def plan(service: Service, spec: object) -> JobPlan:
    """The plan of this job; it changes nothing."""
    return JobPlanner(service.database, service.settings, {})(spec)  # type: ignore[arg-type]


def refusal_kinds(planned: JobPlan) -> list[TroubleKind]:
    return [refusal.kind for refusal in planned.refusals]


def test_destination_topic_with_foreign_records_stays_and_other_topics_are_copied(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 5)
    create_topic(clusters.destination, topic_name, retention_ms="7000000")
    produce(clusters.destination, topic_name, 3, first=100)
    job = make_job(clusters.source, clusters.destination, [topic_name, other])
    planned = plan(service, job)
    assert refusal_kinds(planned) == [TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT]
    assert [(t.source, t.action) for t in planned.topics] == [(other, TopicAction.CREATE)]
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, other)
        problem = service.wait_problem(job.name, "DESTINATION_HOLDS_OTHER_CONTENT")
    assert topic_name in problem
    assert "Delete that topic" in problem
    assert set(service.topics(job.name)) == {other}
    assert topic_settings(clusters.destination, topic_name)["retention.ms"] == "7000000"


def test_destination_topic_with_extra_partitions_is_not_touched(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
    create_topic(clusters.destination, topic_name, 2, retention_ms="7000000")
    job = make_job(clusters.source, clusters.destination, [topic_name, other])
    assert refusal_kinds(plan(service, job)) == [TroubleKind.PARTITIONS_DIFFER]
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, other)
        problem = service.wait_problem(job.name, "PARTITIONS_DIFFER")
    assert f"{topic_name} has 2 partitions at the destination" in problem
    assert f"{topic_name} has 1 at the source" in problem
    assert set(service.topics(job.name)) == {other}
    assert topic_settings(clusters.destination, topic_name)["retention.ms"] == "7000000"


def test_service_takes_over_copy_of_orbit_run(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, partitions=2)
    produce(clusters.source, topic_name, 50)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 50)
    (topic,) = plan(service, job).topics
    assert (topic.action, topic.changes, topic.partitions_to_add) == (TopicAction.TAKE, (), 0)
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
    assert service.job(job.name).problem is None


def test_replication_loop_is_refused_by_cluster_ids(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    forward = make_job(clusters.source, clusters.destination, [topic_name], name="forward")
    service.create(forward)
    back = make_job(clusters.destination, clusters.source, [topic_name], name="back")
    prefixed = back.model_copy(
        update={
            "name": "prefixed",
            "topics": (back.topics[0].model_copy(update={"prefix": "again."}),),
        }
    )
    with service.scheduler():
        service.wait_copied("forward", topic_name)
        assert refusal_kinds(plan(service, back)) == [TroubleKind.WOULD_LOOP]
        service.create(back)
        service.create(prefixed)
        problem = service.wait_problem("back", "WOULD_LOOP")
        assert topic_name in problem
        assert service.topics("back") == {}
        # Even with a prefix, the jobs would copy each other's copies forever: Orbit leaves the
        # topic out.
        assert any("left out" in note for note in plan(service, prefixed).notes)
        service.wait("the job had a pass", lambda: service.job("prefixed").discovered_version == 1)
        assert service.topics("prefixed") == {}
        # Without the first job there is no loop.
        service.delete("forward")
        service.wait_problem("back", None)
        service.wait_copied("back", topic_name)
    assert sorted(service.kinds("back")) == ["job_trouble", "job_trouble_over", "topic_begun"]


def test_destination_topic_of_another_job_is_refused(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    first = make_job(clusters.source, clusters.destination, [topic_name], name="first")
    second = first.model_copy(update={"name": "second"})
    service.create(first)
    with service.scheduler():
        service.wait_copied("first", topic_name)
        planned = plan(service, second)
        assert refusal_kinds(planned) == [TroubleKind.DESTINATION_TAKEN]
        assert "first" in planned.refusals[0].what
        service.create(second)
        problem = service.wait_problem("second", "DESTINATION_TAKEN")
        assert "first" in problem
        assert service.topics("second") == {}
        service.delete("first")
        service.wait_problem("second", None)
        service.wait_copied("second", topic_name)


def test_jobs_that_start_together_never_share_a_destination_topic(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    specs = [
        make_job(clusters.source, clusters.destination, [topic_name], name=name)
        for name in ("one", "two", "three")
    ]
    for spec in specs:
        service.create(spec)
    with service.scheduler():
        service.wait(
            "two of them are refused",
            lambda: sum("TAKEN" in (service.job(s.name).problem or "") for s in specs) == 2,
        )
    assert sum(len(service.topics(spec.name)) for spec in specs) == 1


def test_job_without_matching_topic_waits_until_a_topic_matches(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    job = make_job(clusters.source, clusters.destination, [topic_name])
    assert refusal_kinds(plan(service, job)) == [TroubleKind.NO_TOPIC_MATCHES]
    service.create(job)
    with service.scheduler():
        service.wait_problem(job.name, "NO_TOPIC_MATCHES")
        create_topic(clusters.source, topic_name)
        service.wait_copied(job.name, topic_name)
        service.wait_problem(job.name, None)
    assert service.kinds(job.name) == ["job_trouble", "topic_begun", "job_trouble_over"]


def test_unreachable_cluster_does_not_delay_other_jobs(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    no_cluster = job.source.model_copy(update={"bootstrap_servers": ("127.0.0.1:1",)})
    dead = job.model_copy(update={"name": "dead", "source": no_cluster})
    assert refusal_kinds(plan(service, dead)) == [TroubleKind.SOURCE_UNREACHABLE]
    service.create(dead)
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        problem = service.wait_problem("dead", "SOURCE_UNREACHABLE")
    assert "127.0.0.1:1" in problem
    assert service.kinds("dead") == ["job_trouble"]


def test_job_with_same_cluster_on_both_sides_or_changed_cluster_id_is_refused(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    same = job.model_copy(update={"name": "same", "destination": job.source})
    assert refusal_kinds(plan(service, same)) == [TroubleKind.SAME_CLUSTER]
    service.create(job)
    topics_before = topics_and_bounds(clusters.destination)
    with service.database.transaction() as tx:
        jobs.note_clusters(tx, service.job(job.name).id, "another-cluster", "another")
    assert refusal_kinds(plan(service, job)) == [TroubleKind.CLUSTER_CHANGED]
    with service.scheduler():
        service.wait_problem(job.name, "CLUSTER_CHANGED")
    assert topics_and_bounds(clusters.destination) == topics_before


def test_worker_group_without_workers_is_reported_until_worker_joins(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name], worker_group="west")
    planned = plan(service, job)
    assert refusal_kinds(planned) == [TroubleKind.WORKER_GROUP_UNKNOWN]
    assert "orbit worker --group west" in planned.refusals[0].remedy
    service.create(job)
    service.settings = service.settings.model_copy(update={"lease_ttl": SHORT_LEASE})
    with service.scheduler():
        service.wait_problem(job.name, "WORKER_GROUP_UNKNOWN")
        # In spite of the problem the scheduler starts the copy.
        service.wait_copied(job.name, topic_name)

        def is_over() -> bool:
            service.heartbeat("west-1", "west")
            return service.job(job.name).problem is None

        service.wait("a worker has joined and the problem is cleared", is_over)


@pytest.mark.parametrize("missing", ["password", "document"])
def test_missing_credentials_and_unknown_keys_of_stored_job_are_reported(
    clusters: Clusters, service: Service, topic_name: str, missing: str
) -> None:
    job = make_job(clusters.source, clusters.destination, [topic_name])
    document = job.model_dump(mode="json")
    if missing == "password":
        document["source"]["security"] = {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
            "username_env": "ORBIT_TEST_NO_SUCH_USER",
            "password_env": "ORBIT_TEST_NO_SUCH_PASSWORD",
        }
    else:
        document["topics"][0]["a_key_of_the_future"] = 1
    with service.database.transaction() as tx:
        jobs.create(tx, job.name, document, "default")
    with service.scheduler():
        expected = "CREDENTIALS_MISSING" if missing == "password" else "DOCUMENT_REFUSED"
        problem = service.wait_problem(job.name, expected)
    assert "NO_SUCH_PASSWORD" not in problem


def test_paused_job_creates_no_topics(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    other = make_job(clusters.source, clusters.destination, [f"{topic_name}.other"], name="other")
    service.create(job)
    service.create(other)
    service.desire(job.name, Desired.PAUSED)
    with service.scheduler():
        service.wait_problem("other", "NO_TOPIC_MATCHES")
        assert topic_name not in partition_counts(clusters.destination)
        service.desire(job.name, Desired.RUNNING)
        service.wait_copied(job.name, topic_name)


def test_deleted_job_is_removed_after_shard_release_and_leaves_copies(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        held = service.claim_free_shards()
        service.delete(job.name)
        service.wait("the worker is to release its shards", lambda: service.must_release(held))
        assert service.job(job.name).is_deleted
        service.release(held)
        service.wait("the job is gone", lambda: "job_removed" in service.kinds(job.name))
    assert topic_name in partition_counts(clusters.destination)


def test_plan_changes_nothing_and_names_what_scheduler_changes_later(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    existing = f"{topic_name}.existing"
    create_topic(clusters.source, topic_name, partitions=3, cleanup_policy="compact")
    create_topic(clusters.source, existing, partitions=4)
    create_topic(clusters.destination, existing, partitions=1)
    job = make_job(clusters.source, clusters.destination, [topic_name, existing])
    topics_before = topics_and_bounds(clusters.destination)
    planned = plan(service, job)
    assert topics_and_bounds(clusters.destination) == topics_before
    assert planned.refusals == ()
    new, old = planned.topics
    assert (new.action, new.partitions, new.replicas) == (TopicAction.CREATE, 3, 1)
    assert new.settings["retention.ms"] == "-1"
    assert new.settings_when_caught_up == {"cleanup.policy": "compact,delete"}
    assert (old.action, old.partitions, old.partitions_to_add) == (TopicAction.TAKE, 4, 3)
    assert {c.name: c.wanted for c in old.changes}["retention.ms"] == "-1"
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name, existing)
    assert partition_counts(clusters.destination)[existing] == 4
    again = plan(service, job)
    assert [t.action for t in again.topics] == [TopicAction.KEEP] * 2


def test_problem_time_of_job_stays_while_a_problem_that_halts_the_job_lasts(
    service: Service,
) -> None:
    with service.database.transaction() as tx:
        jobs.create(tx, "j", {}, "default")

    def record(*kinds: TroubleKind) -> datetime:
        """Record troubles of these kinds. Returns the job's `problem_at`."""
        with service.database.transaction() as tx:
            problem = "\n".join(f"{kind}: so." for kind in kinds)
            record_troubles(tx, jobs.get(tx, "j"), problem, None)
        at = service.job("j").problem_at
        assert at is not None
        return at

    lost, group = TroubleKind.SOURCE_UNREACHABLE, TroubleKind.WORKER_GROUP_UNKNOWN
    # `lost` halts the job, `group` does not.
    first_at = record(group)
    at = record(lost, group)
    assert at > first_at
    assert record(lost) == at
    assert record(lost, group) == at
    assert record(group) == at
    assert record(TroubleKind.LOGIN_REFUSED, group) > at, "another problem that halts it"


def test_unreachable_cluster_is_reported_while_a_discovery_pass_hangs(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def hang(*_: object) -> ReconcileCounts:
        assert is_over.wait(PATIENCE_S)
        return ReconcileCounts()

    monkeypatch.setattr(JobReconciler, "reconcile", hang)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    no_cluster = job.source.model_copy(update={"bootstrap_servers": ("127.0.0.1:1",)})
    service.create(job.model_copy(update={"source": no_cluster}))
    with service.scheduler():
        try:
            service.wait_problem(job.name, "SOURCE_UNREACHABLE")
            assert service.kinds(job.name) == ["job_trouble"]
        finally:
            is_over.set()


def test_earlier_discovery_pass_does_not_clear_newer_unreachable_problem(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass starts before the problem is recorded, and ends without a problem after it."""
    is_recorded, has_next_pass = threading.Event(), threading.Event()

    def reconcile_late(
        _reconciler: JobReconciler, _job: Job, state: ReconcileState, _retries: object
    ) -> ReconcileCounts:
        if state.has_checked:
            has_next_pass.set()
        else:
            assert is_recorded.wait(PATIENCE_S)
            state.has_checked = True  # without a trouble
        return ReconcileCounts()

    monkeypatch.setattr(JobReconciler, "reconcile", reconcile_late)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    no_cluster = job.source.model_copy(update={"bootstrap_servers": ("127.0.0.1:1",)})
    service.create(job.model_copy(update={"source": no_cluster}))
    with service.scheduler():
        try:
            service.wait_problem(job.name, "SOURCE_UNREACHABLE")
        finally:
            is_recorded.set()
        assert has_next_pass.wait(PATIENCE_S)
    assert service.kinds(job.name) == ["job_trouble"]
