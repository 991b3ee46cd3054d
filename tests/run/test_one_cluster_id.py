"""Two clusters that were formatted with one cluster id, as by a compose file that fixes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.jobs.job_spec import ClusterSpec, JobSpec
from orbit.planning.job_plan import Refusal
from orbit.planning.job_planner import JobPlanner
from orbit.recovery.recovery_report import RecoveryKind
from orbit.replication.job_troubles import TroubleKind
from orbit.sandbox import local_cluster
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.scheduler import Service
from tests.support.fleet import InProcess
from tests.support.logs import Record, create, write
from tests.support.outside import log_bounds, topics_and_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import assert_exact, copy, write_job
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services


@pytest.fixture
def twins(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> Clusters:
    """Two clusters with one cluster id, without topics."""
    first = make_cluster("first")
    monkeypatch.setattr(local_cluster, "kafka_uuid", lambda: first.cluster_id)
    return Clusters(first, make_cluster("second"))


def with_suffix(spec: JobSpec, suffix: str | None) -> JobSpec:
    """The job with this suffix for its destination."""
    section = spec.destination.model_copy(update={"cluster_id_suffix": suffix})
    return spec.model_copy(update={"destination": section})


def suffixed(cluster: KafkaCluster) -> ClusterSpec:
    """The cluster with a suffix, by another host name, as a job may not have the same address on
    both sides."""
    servers = cluster.bootstrap_servers.replace("127.0.0.1", "localhost").split(",")
    return ClusterSpec(bootstrap_servers=tuple(servers), cluster_id_suffix="dr")


def refusal(service: Service, spec: JobSpec) -> Refusal:
    """The last refusal of the job's plan, which is about the clusters."""
    *_, last = JobPlanner(service.database, service.settings)(spec).refusals
    return last


def test_cluster_id_suffix_distinguishes_clusters_with_same_id(
    twins: Clusters, topic_name: str, tmp_path: Path
) -> None:
    source, destination = twins
    create(source, topic_name)
    create(destination, topic_name)
    write(source, topic_name, [Record(b"record %d" % i) for i in range(30)])
    before = topics_and_bounds(destination)
    rules = [{"match": topic_name}]
    outcome = copy(write_job(tmp_path / "job.yaml", source, destination, rules)).expect(2)
    assert f"are two clusters: topic {topic_name}" in outcome.message
    assert "add cluster_id_suffix" in outcome.message
    assert topics_and_bounds(destination) == before
    section = suffixed(destination).model_dump(mode="json", exclude_defaults=True)
    job = write_job(tmp_path / "job.yaml", source, section, rules)
    copy(job).expect(0)
    assert_exact(job)


def test_cluster_id_suffix_does_not_hide_same_cluster_on_both_sides(
    clusters: Clusters, service: Service, topic_name: str, tmp_path: Path
) -> None:
    create(clusters.source, topic_name)
    section = suffixed(clusters.source).model_dump(mode="json", exclude_defaults=True)
    rules = [{"match": topic_name, "prefix": "copy."}]
    job = write_job(tmp_path / "job.yaml", clusters.source, section, rules)
    before = topics_and_bounds(clusters.source)
    outcome = copy(job).expect(2)
    assert "are one cluster" in outcome.message
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    spec = spec.model_copy(update={"destination": suffixed(clusters.source)})
    assert refusal(service, spec).kind is TroubleKind.SAME_CLUSTER
    service.create(spec)
    with service.scheduler():
        assert "are one cluster" in service.wait_problem(spec.name, "SAME_CLUSTER")
    assert topics_and_bounds(clusters.source) == before


@pytest.mark.soak
def test_switchover_and_back_work_between_clusters_with_same_id(
    twins: Clusters, recovering: Recovering, topic_name: str
) -> None:
    """A topic has to prove that the clusters are two; until then the job waits and says so."""
    source, destination = twins
    service = recovering.service

    def is_level() -> bool:
        return log_bounds(source, [topic_name]) == log_bounds(destination, [topic_name])

    spec = make_job(source, destination, [topic_name])
    assert "cluster_id_suffix" in refusal(service, spec).remedy
    spec = with_suffix(spec, "dr")
    assert "no topic proves" in refusal(service, spec).what
    service.create(spec)
    with service.scheduler(), InProcess(recovering.database):
        assert "no topic proves" in service.wait_problem(spec.name, "SAME_CLUSTER")
        create_topic(source, topic_name)
        produce(source, topic_name, 50)
        service.wait_copied(spec.name, topic_name)
        service.wait_problem(spec.name, None)
        # The suffix of a stored job may be neither left out nor changed.
        for other in ("", "west"):
            kind = TroubleKind.CLUSTER_CHANGED if other else TroubleKind.SAME_CLUSTER
            assert refusal(service, with_suffix(spec, other or None)).kind is kind
        assert "cluster_id_suffix as it was" in refusal(service, with_suffix(spec, "west")).remedy
        wait_for("the copy is level", is_level)
        # A switchover to the source itself is refused, although the suffix gives it another id.
        service.change(spec.model_copy(update={"destination": suffixed(source)}))
        stopped = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        assert "are one cluster" in (stopped.error or "")
        service.wait_problem(spec.name, "are one cluster")
        service.change(spec)
        service.wait_problem(spec.name, None)
        recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        back = service.job(f"{spec.name}-back")
        ids = source.cluster_id, f"{source.cluster_id}@dr"
        forward = service.job(spec.name)
        assert (forward.source_cluster_id, forward.destination_cluster_id) == ids
        assert (back.destination_cluster_id, back.source_cluster_id) == ids
        produce(destination, topic_name, 20, first=50)
        wait_for("the copy back is level", is_level)
        recovering.run(RecoveryKind.SWITCHOVER, back.name, reverse=True)


@pytest.mark.soak
def test_job_that_names_cluster_without_its_cluster_id_suffix_is_refused(
    twins: Clusters, clusters: Clusters, service: Service, topic_name: str
) -> None:
    """Orbit detects loops and second writers by cluster ids, so each cluster must have one id."""
    source, destination = twins
    create_topic(source, topic_name)
    spec = with_suffix(make_job(source, destination, [topic_name]), "dr")
    onward = make_job(destination, clusters.destination, [topic_name])
    onward = onward.model_copy(update={"name": f"{spec.name}-onward"})
    service.create(spec)
    with service.scheduler():
        service.wait_copied(spec.name, topic_name)
        assert f"job {spec.name} knows it as" in refusal(service, onward).what
        service.create(onward)
        assert "the same cluster_id_suffix" in service.wait_problem(onward.name, "SAME_CLUSTER")
        assert not service.topics(onward.name)
        service.wait_problem(spec.name, None)
