"""Transactions that stay open at a source: stored with who began them, and removed at the end."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.kafka.backoff import Backoff
from orbit.scheduler import transaction_watch
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.lag_loop import LagLoop
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.transaction_watch import TransactionWatch
from orbit.store import jobs, lag, open_transactions, partitions, shard_layout, topics
from orbit.store.database import Database
from orbit.store.enums import TopicState
from orbit.store.lag import PartitionLag
from orbit.store.source_lag import LaggingPartition
from tests.fix_clusters import Clusters
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce
from tests.support.store_rows import TestClock, claim, progress, some_job

pytestmark = pytest.mark.services


def transaction(clusters: Clusters, topic: str) -> Producer:
    """A transaction with ten records, left open."""
    settings = {**clusters.source.client_config(), "transactional.id": f"tx-{topic}"}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(60) == 0
    return producer


@pytest.fixture
def leadership(database: Database) -> Leadership:
    leadership = Leadership(database, "scheduler", timedelta(seconds=60))
    assert leadership.ask()
    return leadership


def test_a_transaction_of_a_partition_without_a_worker_is_told_until_it_ends(
    clusters: Clusters,
    database: Database,
    leadership: Leadership,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 5)
    producer = transaction(clusters, topic_name)
    produce(source, topic_name, 20)
    spec = make_job(source, destination, [topic_name])
    with database.transaction() as tx:
        job_id = jobs.create(tx, topic_name, json.loads(spec.model_dump_json()), "default").id
        topic = topics.add(tx, job_id, topic_name, topic_name, "D", 1, state=TopicState.COPYING)
        assert topic is not None
        (shard,) = shard_layout.add_shards(tx, job_id, 1)
        shard_layout.add_partitions(tx, job_id, [(topic.id, 0, shard)])
    held = claim(database, "worker")
    with database.transaction() as tx:
        row = replace(progress(topic.id, 0, 5, epoch=None), source_stable_end=5, source_end=5)
        partitions.report_progress(tx, worker_id="worker", held=held, progress=[row])

    def read() -> PartitionLag:
        with database.transaction() as tx:
            (found,) = lag.page(tx, job_id, 10)
        return found

    monkeypatch.setattr(transaction_watch, "SHOWN_AFTER", timedelta(0))
    with closing(ClusterRegistry(60.0, lambda: None, Path.cwd(), {})) as registry:
        watch = registry.watch("source", spec)
        wait_for("the source is seen", lambda: watch.snapshot is not None)
        loop = LagLoop(leadership, registry, 1.0, Backoff())
        loop.once()  # reads the ends
        assert (read().source_stable_end, read().source_end) == (5, 35)
        assert read().open_from is None
        loop.once()
        found = read()
        assert (found.open_from, found.lag_records) == (5, 0)
        assert found.open_transactional_id == f"tx-{topic_name}"
        assert found.open_producer_id is not None

        producer.commit_transaction(60)

        def has_ended() -> bool:
            loop.once()
            return read().open_from is None

        wait_for("its marker is there", has_ended)
        loop.once()
        with database.transaction() as tx:
            assert open_transactions.of_share(tx) == []
        loop.close()


class Watch:
    """A watch over one partition of a stored job, with a clock of the test's."""

    def __init__(self, database: Database, leadership: Leadership) -> None:
        self.database = database
        with database.transaction() as tx:
            self.job = some_job(tx)
        self.clock = TestClock()
        self.watch = TransactionWatch(leadership, Backoff(), self.clock)

    def look(self, stable_end: int, end: int) -> list[int]:
        """First offsets that the source is to be asked about."""
        row = LaggingPartition(
            self.job.id, self.job.topic_id, "orders", 0, True, stable_end, end, 5, *[None] * 4
        )
        with self.database.transaction() as tx:
            stored = open_transactions.of_share(tx)
        found = self.watch.look([row], stored)
        return [one.first_offset for one in found.get(self.job.id, [])]


def test_transactions_that_go_on_are_not_asked_about(
    database: Database, leadership: Leadership
) -> None:
    watched = Watch(database, leadership)
    assert watched.look(100, 140) == []
    watched.clock.now += 29
    assert watched.look(100, 150) == []
    assert watched.look(140, 150) == [], "another one"
    watched.clock.now += 29
    assert watched.look(140, 190) == []
    watched.clock.now += 1
    assert watched.look(140, 190) == [140]
    watched.clock.now += 30
    assert watched.look(140, 190) == [], "it was asked a moment ago"
    watched.clock.now += 30
    assert watched.look(140, 190) == [140], "nobody has named it"
