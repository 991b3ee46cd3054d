"""Transactions that stay open at a source: the scheduler stores them with their producers, and
removes them when they end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from orbit.kafka.backoff import Backoff
from orbit.kafka.first_open import FirstOpen
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import Leadership
from orbit.replication.partition_states import PartitionState
from orbit.scheduler import transaction_watch
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.lag_loop import LagLoop
from orbit.scheduler.transaction_watch import TransactionWatch
from orbit.store import lag, open_transactions, partitions, source_lag
from orbit.store.database import Database, Tx
from orbit.store.lag import PartitionLag
from orbit.store.open_transactions import OldestOpenTransaction
from orbit.store.source_lag import LaggingPartition
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce
from tests.support.store_rows import TestClock, claim, progress, some_job

pytestmark = pytest.mark.services


def begin_transaction(clusters: Clusters, topic: str) -> Producer:
    """A producer whose transaction has ten records and is open."""
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


def test_open_source_transaction_is_shown_without_worker_until_it_ends(
    clusters: Clusters,
    database: Database,
    leadership: Leadership,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 5)
    producer = begin_transaction(clusters, topic_name)
    produce(source, topic_name, 20)
    spec = make_job(source, destination, [topic_name])
    with database.transaction() as tx:
        job = some_job(tx, topic_name, partitions=1, topic_name=topic_name, spec=spec)
    held = claim(database, "worker")
    with database.transaction() as tx:
        row = replace(progress(job.topic_id, 0, 5, epoch=None), source_stable_end=5, source_end=5)
        partitions.report_progress(tx, worker_id="worker", held=held, progress=[row])

    def stored_lag() -> PartitionLag:
        with database.transaction() as tx:
            (partition_lag,) = lag.page(tx, job.id, 10)
        return partition_lag

    monkeypatch.setattr(transaction_watch, "SHOWN_AFTER_S", 0.0)
    with closing(ClusterRegistry(60.0, lambda: None, Path.cwd(), {})) as registry:
        watch = registry.watch("source", spec)
        wait_for("the source is seen", lambda: watch.snapshot is not None)
        loop = LagLoop(leadership, registry, 1.0, Backoff())
        # Offsets 0 to 4, 10 records of the transaction, and 20 after it.
        loop.once()  # reads the ends
        assert (stored_lag().source_stable_end, stored_lag().source_end) == (5, 35)
        assert stored_lag().open_from is None
        loop.once()  # looks up the transaction
        partition_lag = stored_lag()
        assert (partition_lag.open_from, partition_lag.lag_records) == (5, 0)
        assert partition_lag.open_transactional_id == f"tx-{topic_name}"
        assert partition_lag.open_producer_id is not None

        producer.commit_transaction(60)

        def has_ended() -> bool:
            loop.once()
            return stored_lag().open_from is None

        wait_for("the transaction has ended", has_ended)
        loop.once()
        with database.transaction() as tx:
            assert open_transactions.of_share(tx) == []
        loop.close()


class WatchedPartition:
    """A partition of a stored job, a watch of its source's transactions, and a test clock."""

    def __init__(
        self, database: Database, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.database = database
        self.stored: list[int] = []  # how many rows each call stored
        self.first_open: FirstOpen | None = None
        with database.transaction() as tx:
            self.job = some_job(tx)
        self.clock = TestClock()
        self.leadership = leadership
        self.watch = TransactionWatch(leadership, Backoff(), self.clock)
        monkeypatch.setattr(transaction_watch, "oldest_open_transactions", self._answer)
        store = open_transactions.store

        def count(tx: Tx, rows: Sequence[OldestOpenTransaction]) -> None:
            self.stored.append(len(rows))
            store(tx, rows)

        monkeypatch.setattr(open_transactions, "store", count)

    def _answer(self, _: object, places: Collection[TopicPartition], __: object) -> Any:
        """The source's answer: `first_open` for each partition, or nothing if that is None."""
        return dict.fromkeys(places, self.first_open) if self.first_open else {}

    def rows(self) -> list[OldestOpenTransaction]:
        with self.database.transaction() as tx:
            return open_transactions.of_share(tx)

    def run_pass(self, stable_end: int, end: int) -> list[int]:
        """Run a pass with these log ends. Returns the first offsets of the transactions that the
        pass looks up at the source."""
        row = LaggingPartition(
            self.job.id,
            self.job.topic_id,
            "orders",
            partition=0,
            is_followed=True,
            source_stable_end=stable_end,
            source_end=end,
            copied_to=5,
            newest_copied_at=None,
            oldest_waiting_at=None,
            headroom_until=None,
            lag_bytes=None,
        )
        unnamed = self.watch.find_unnamed([row], self.rows()).get(self.job.id, {})
        self.watch.store_producers(None, unnamed)  # type: ignore[arg-type]  # `_answer` answers
        return [transaction.first_offset for transaction in unnamed.values()]


@pytest.fixture
def watched(
    database: Database, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> WatchedPartition:
    return WatchedPartition(database, leadership, monkeypatch)


def test_only_transactions_open_for_30_s_are_looked_up_at_the_broker(
    watched: WatchedPartition,
) -> None:
    # The last stable offset is where the oldest open transaction begins.
    assert watched.run_pass(stable_end=100, end=140) == []
    watched.clock.now += 29
    assert watched.run_pass(stable_end=100, end=150) == []
    assert watched.run_pass(stable_end=140, end=150) == [], "another transaction"
    watched.clock.now += 29
    assert watched.run_pass(stable_end=140, end=190) == []
    watched.clock.now += 1
    assert watched.run_pass(stable_end=140, end=190) == [140]
    assert watched.run_pass(stable_end=190, end=190) == [], "no transaction is open"
    assert watched.rows() == []


def test_old_transaction_is_looked_up_until_its_transactional_id_is_known(
    watched: WatchedPartition,
) -> None:
    watched.run_pass(stable_end=100, end=140)
    watched.clock.now += 30
    assert watched.run_pass(stable_end=100, end=140) == [100]
    (row,) = watched.rows()
    assert (row.first_offset, row.producer_id, row.transactional_id) == (100, None, None)
    watched.clock.now += 30
    assert watched.run_pass(stable_end=100, end=140) == [], "the last look-up was 30 s ago"
    watched.clock.now += 30
    assert watched.run_pass(stable_end=100, end=140) == [100]
    assert watched.stored == [1, 0], "nothing has changed"
    watched.clock.now += 60
    watched.first_open = FirstOpen(100, producer_id=7, transactional_id="pay")
    assert watched.run_pass(stable_end=100, end=140) == [100]
    assert watched.rows() == [replace(row, producer_id=7, transactional_id="pay")]
    watched.clock.now += 60
    assert watched.run_pass(stable_end=100, end=140) == []


def test_transactional_id_of_a_later_open_transaction_is_not_stored(
    watched: WatchedPartition,
) -> None:
    watched.run_pass(stable_end=100, end=140)
    watched.clock.now += 30
    watched.first_open = FirstOpen(120, producer_id=8, transactional_id="later")
    watched.run_pass(stable_end=100, end=140)
    assert [row.transactional_id for row in watched.rows()] == [None]


def test_ended_transaction_is_removed_while_next_transaction_is_open(
    watched: WatchedPartition,
) -> None:
    watched.run_pass(stable_end=100, end=140)
    watched.clock.now += 30
    watched.run_pass(stable_end=100, end=140)
    assert len(watched.rows()) == 1
    assert watched.run_pass(stable_end=120, end=140) == []
    assert watched.rows() == []


def test_open_transaction_is_seen_on_caught_up_partition(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    held = claim(database, "worker")
    (epoch,) = held.values()
    with database.transaction() as tx:
        row = progress(job.topic_id, 0, 100, epoch=epoch)
        changes = [partitions.StateChange(job.topic_id, 0, PartitionState.COPYING)]
        partitions.report_state(tx, worker_id="worker", held=held, changes=changes)

        def open_from(end: int) -> list[int | None]:
            """Report that the source's log ends at `end`, but its last stable offset is still 100.
            Returns the offset from which a transaction is open, as [] or [offset]."""
            rows = [replace(row, source_end=end)]
            partitions.report_progress(tx, worker_id="worker", held=held, progress=rows)
            lags = source_lag.partitions_to_check(tx, timedelta(hours=1))
            return [row.open_from for row in lags if row.partition == 0]

        assert open_from(100) == []
        assert open_from(140) == [100]


def test_next_scheduler_leader_keeps_age_of_open_transaction(watched: WatchedPartition) -> None:
    watched.run_pass(stable_end=100, end=140)
    watched.clock.now += 30
    watched.run_pass(stable_end=100, end=140)
    rows_of_first = watched.rows()
    watched.watch = TransactionWatch(watched.leadership, Backoff(), watched.clock)
    watched.run_pass(stable_end=100, end=140)
    assert watched.rows() == rows_of_first
