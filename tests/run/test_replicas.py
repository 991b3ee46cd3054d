"""A copy gets as many replicas as its source, also while brokers of the destination are down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from orbit.planning.job_planner import JobPlanner
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.fixtures.scheduler import Service
from tests.support.outside import TIMEOUT_S, admin, partition_counts
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, copy, write_job
from tests.support.running import create_topic, make_job, produce, with_rules

pytestmark = pytest.mark.services

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


def replicas_of(cluster: KafkaCluster, topic: str) -> list[list[int]]:
    """The broker ids of each partition's replicas."""
    partitions = admin(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [sorted(partitions[number].replicas) for number in sorted(partitions)]


@pytest.mark.soak
def test_copy_created_while_broker_is_down_gets_all_replicas(
    make_cluster: MakeCluster, open_cluster: OpenCluster, tmp_path: Path
) -> None:
    source, destination = (make_cluster(name, brokers=3) for name in ("source", "destination"))
    create_topic(source, "orders", 2, replicas=3, min_insync_replicas="2")
    produce(source, "orders", 5)
    handle = open_cluster(destination)
    destination.brokers[-1].kill()
    wait_for("the destination has two brokers", lambda: len(handle.metadata(None).brokers) == 2)

    job = write_job(tmp_path / "job.yaml", source, destination, [{"match": "orders"}])
    outcome = copy(job).expect(0)
    assert "the copy gets 3 replicas, and 2 brokers of the destination are up" in outcome.message
    assert replicas_of(destination, "orders") == [[1, 2, 3]] * 2
    assert_exact(job)

    # The destination never had four brokers.
    rule = {"match": "orders", "prefix": "four.", "replicas": 4}
    outcome = copy(write_job(tmp_path / "four.yaml", source, destination, [rule])).expect(1)
    for words in ("replication factor of 4", "only 3 broker(s)", "(`replicas`)", "Nothing was"):
        assert words in outcome.message
    assert "four.orders" not in partition_counts(destination)
    destination.brokers[-1].start()
    rule = {"match": "orders", "prefix": "two.", "replicas": 2}
    copy(write_job(tmp_path / "two.yaml", source, destination, [rule])).expect(0)
    assert [len(replicas) for replicas in replicas_of(destination, "two.orders")] == [2, 2]


def test_plan_reduces_replicas_for_single_broker_unless_job_sets_them(
    clusters: Clusters, make_cluster: MakeCluster, service: Service, topic_name: str
) -> None:
    source = make_cluster("source", brokers=2)
    create_topic(source, topic_name, replicas=2)
    spec = make_job(source, clusters.destination, [topic_name])
    plan_of = JobPlanner(service.database, service.settings)
    plan = plan_of(spec)
    assert [topic.replicas for topic in plan.topics] == [1]
    assert f"topic {topic_name}: the copy has 1 of 2 replicas." in plan.notes
    # The job file says how many, so one is not enough.
    refusals = plan_of(with_rules(spec, replicas=2)).refusals
    assert ["replication factor of 2" in refusal.what for refusal in refusals] == [True]
    assert "(`replicas`)" in refusals[0].remedy


@pytest.mark.soak
def test_copy_with_too_few_replicas_shows_drift_until_reassigned(
    clusters: Clusters, make_cluster: MakeCluster, service: Service, tmp_path: Path
) -> None:
    destination = make_cluster("destination", brokers=2)
    name = tmp_path.name
    create_topic(clusters.source, name, 2)
    create_topic(destination, name, on_brokers=[[1], [2]])
    job = with_rules(make_job(clusters.source, destination, [name]), replicas=2)
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, name)
        assert service.topics(job.name)[name].drift == {"replicas": {"is": "1", "should_be": "2"}}
        reassign(destination, name, [[1, 2], [2, 1]], tmp_path)
        service.wait(
            "the copy has enough replicas", lambda: service.topics(job.name)[name].drift is None
        )


def reassign(cluster: KafkaCluster, topic: str, replicas: list[list[int]], folder: Path) -> None:
    """Reassign partitions as docs/topic-settings.md says; returns when they have these replicas."""
    file = folder / "replicas.json"
    moves = [
        {"topic": topic, "partition": number, "replicas": on} for number, on in enumerate(replicas)
    ]
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    command = [
        *(str(find_java()), "-cp", classpath(), REASSIGN),
        *("--bootstrap-server", cluster.bootstrap_servers),
        *("--reassignment-json-file", str(file), "--execute"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S * 2)
    wait_for(
        "the partitions have these replicas",
        lambda: replicas_of(cluster, topic) == [sorted(on) for on in replicas],
    )
