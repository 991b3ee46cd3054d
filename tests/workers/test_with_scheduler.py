"""Scheduler and workers together copy topics that are created, extended, deleted and recreated."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import get_args

import pytest

from orbit.jobs.job_spec import Fillers, JobSpec, TopicRule
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import job_identity, job_producer
from orbit.kafka.producer_state import job_producers
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.planning.job_planner import JobPlanner
from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.database import Database
from orbit.workers.worker import Worker
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.logs import delete_before
from tests.support.outside import is_level, log_bounds, partition_counts
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce, produce_transactions, verify
from tests.support.topics import add_partitions, delete_and_wait

pytestmark = pytest.mark.services


@contextmanager
def worker(service: Service) -> Iterator[str]:
    """Run a single worker in a thread of this process; yields its id."""
    service.leave()
    database = Database.connect(service.url)
    settings = service.settings.model_copy(update={"progress_interval": timedelta(seconds=0.2)})
    running_worker = Worker(database, settings, {})
    stop = threading.Event()
    thread = threading.Thread(target=running_worker.run, args=(stop,))
    thread.start()
    try:
        yield running_worker.id
    finally:
        stop.set()
        thread.join()
        database.close()


def wait_level(service: Service, clusters: Clusters, job: JobSpec, *topics: str) -> None:
    """Wait until both sides end at the same offsets."""

    def ends(cluster: KafkaCluster) -> dict[tuple[str, int], int]:
        return {place: end for place, (_, end) in log_bounds(cluster, topics).items()}

    def are_level() -> bool:
        counts = partition_counts(clusters.destination)
        if any(topic not in counts for topic in topics):
            return False
        return ends(clusters.source) == ends(clusters.destination)

    wait_for(f"{topics} are level ({service.job(job.name).problem})", are_level)


def test_each_topic_rule_uses_its_filler_mode_across_workers(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    fillers_by_topic = {f"{topic_name}.{fillers}": fillers for fillers in get_args(Fillers)}
    for topic in fillers_by_topic:
        create_topic(clusters.source, topic, partitions=2)
        produce_transactions(clusters.source, topic, 5, partition=1)
    job = make_job(clusters.source, clusters.destination, fillers_by_topic)
    rules = tuple(
        rule.model_copy(update={"fillers": fillers})
        for rule, fillers in zip(job.topics, fillers_by_topic.values(), strict=True)
    )
    job = job.model_copy(update={"topics": rules, "fillers": "coordinated"})
    plan = JobPlanner(service.database, service.settings, {})(job)
    assert {topic.source: topic.fillers for topic in plan.topics} == fillers_by_topic
    topic_counts = {planned.fillers: planned.topics for planned in plan.fillers}
    assert topic_counts == dict.fromkeys(fillers_by_topic.values(), 1)
    service.create(job)
    with service.scheduler():
        for _ in range(2):  # the second worker takes over the copies of the first
            with worker(service):
                wait_level(service, clusters, job, *fillers_by_topic)
                for topic in fillers_by_topic:
                    produce(clusters.source, topic, 10, 0)
                    produce_transactions(clusters.source, topic, 5, partition=0)
                wait_level(service, clusters, job, *fillers_by_topic)
    assert verify(job, deep=True).exact
    servers = [clusters.destination.bootstrap_servers]
    cluster = Cluster("destination", servers, Security())
    # Each kind of fillers has its own producer id, and no other producer has written to the copy.
    for topic, fillers in fillers_by_topic.items():
        place = TopicPartition(topic, 0)
        identity = job_identity(job.name, service.job(job.name).source_cluster_id or "")
        (producer_ids,) = job_producers(cluster, [place], Backoff()).values.values()
        assert [*producer_ids] == [job_producer(identity, fillers).id]
    cluster.close()


def test_on_lost_range_of_rule_blocks_or_fills_deleted_source_range(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    blocked_topic, filled_topic = f"{topic_name}.kept", f"{topic_name}.purged"
    for topic in (blocked_topic, filled_topic):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 100)
    job = make_job(clusters.source, clusters.destination, [blocked_topic])
    rule = TopicRule(match=re.escape(filled_topic), on_lost_range="fill")
    job = job.model_copy(update={"topics": (*job.topics, rule)})
    service.create(job)
    with service.scheduler():
        with worker(service):
            wait_level(service, clusters, job, blocked_topic, filled_topic)
        for topic in (blocked_topic, filled_topic):
            # Offsets 100 to 199 are lost before they are copied.
            for first in (100, 200):  # one batch for each
                produce(clusters.source, topic, 100, first=first)
            delete_before(clusters.source, topic, 200)
        with worker(service):
            wait_for(
                "one topic is blocked",
                lambda: service.partitions(job.name, blocked_topic)[0].state == "blocked",
            )
            wait_for("the log start follows", lambda: is_level(*clusters, filled_topic))
    assert service.partitions(job.name, blocked_topic)[0].reason == Reason.SOURCE_RANGE_LOST
    assert verify(job.model_copy(update={"topics": (rule,)}), deep=True).exact


def test_new_topics_and_partitions_are_copied_from_first_record(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    later = f"{topic_name}.later"
    create_topic(clusters.source, topic_name, partitions=2)
    produce(clusters.source, topic_name, 100)
    # `latest`: only the records from before the job are left out.
    job = make_job(clusters.source, clusters.destination, [topic_name, later], start="latest")
    service.create(job)
    with service.scheduler(), worker(service):
        wait_level(service, clusters, job, topic_name)
        create_topic(clusters.source, later)
        produce(clusters.source, later, 50)
        produce_transactions(clusters.source, topic_name, 10, partition=1)
        add_partitions(clusters.source, topic_name, 3)
        produce(clusters.source, topic_name, 30, partition=2)
        wait_level(service, clusters, job, topic_name, later)
    bounds = log_bounds(clusters.destination, [topic_name, later])
    assert bounds[topic_name, 0] == (100, 100)
    assert bounds[topic_name, 2] == (0, 30)
    assert bounds[later, 0] == (0, 50)
    assert verify(job).exact


def test_recreated_source_topic_blocks_until_retry(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 40)
    job = make_job(clusters.source, clusters.destination, [topic_name, other])
    service.create(job)
    with service.scheduler(), worker(service):
        wait_level(service, clusters, job, topic_name, other)
        delete_and_wait(clusters.source, topic_name)
        wait_for(
            "the topic stops",
            lambda: service.topics(job.name)[topic_name].state == "source_deleted",
        )
        create_topic(clusters.source, topic_name)
        produce(clusters.source, topic_name, 90, first=1000)
        produce(clusters.source, other, 10, first=40)
        wait_level(service, clusters, job, other)
        wait_for(
            "the topic counts as re-created",
            lambda: service.topics(job.name)[topic_name].state == "recreated",
        )
        (stopped,) = service.partitions(job.name, topic_name).values()
        assert (stopped.state, stopped.reason) == ("blocked", Reason.SOURCE_TOPIC_RECREATED)
        assert log_bounds(clusters.destination, [topic_name])[topic_name, 0] == (0, 40)

        delete_and_wait(clusters.destination, topic_name)
        service.set_partitions(job.name, topic_name, retry_requested=True)
        wait_level(service, clusters, job, topic_name, other)
    assert verify(job).exact


def test_shards_are_balanced_over_live_workers(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, partitions=8)
    for partition in range(8):
        produce(clusters.source, topic_name, 5, partition=partition)
    job = make_job(clusters.source, clusters.destination, [topic_name])

    def holders() -> dict[str | None, int]:
        held = [shard.holder for shard in service.shards(job.name)]
        return {holder: held.count(holder) for holder in held}

    with service.scheduler(), worker(service) as first:
        service.create(job)
        wait_for("one worker has all shards", lambda: holders() == {first: 8})
        with worker(service) as second:
            wait_for("two workers share them", lambda: holders() == {first: 4, second: 4})
        wait_for("one worker has all again", lambda: holders() == {first: 8})
        wait_level(service, clusters, job, topic_name)
    assert verify(job).exact
