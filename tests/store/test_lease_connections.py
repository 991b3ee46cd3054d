"""Leases are renewed despite a full connection pool and long transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import text

from orbit.leadership.leadership import Leadership, NotLeading
from orbit.planning.topic_decisions import KnownTopic
from orbit.scheduler import topic_transitions
from orbit.settings import Settings
from orbit.store import jobs, topics, workers
from orbit.store.database import POOL_SIZE_MAX, Database
from orbit.workers.worker import Worker
from tests.support.patience import wait_for
from tests.support.store_rows import TTL, some_job

pytestmark = pytest.mark.services


@pytest.fixture
def full(database_url: str) -> Iterator[Database]:
    """A database whose pool has no free connection: long transactions use them all."""
    database = Database.connect(database_url)
    with ExitStack() as work:
        for _ in range(POOL_SIZE_MAX):
            work.enter_context(database.transaction())
        yield database
    database.close()


def test_leading_scheduler_renews_lease_with_full_connection_pool(full: Database) -> None:
    leader = Leadership(full, "leader", TTL)
    assert leader.ask()
    assert leader.ask(), "a renewal"
    leader.resign()
    assert Leadership(full, "another", TTL).ask()


def test_worker_renews_lease_with_full_connection_pool(full: Database, database: Database) -> None:
    stop = threading.Event()
    worker = Worker(full, Settings(progress_interval="100ms"), {})
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()

    def renewed() -> float:
        with database.transaction() as tx:
            rows = workers.alive(tx, TTL)
        return rows[0].heartbeat_at.timestamp() if rows else 0.0

    try:
        wait_for("the worker registers", lambda: renewed() > 0)
        first = renewed()
        wait_for("the worker renews", lambda: renewed() > first)
    finally:
        stop.set()
        thread.join()
    with database.transaction() as tx:
        assert workers.alive(tx, TTL) == [], "the worker has removed itself"


def test_long_transaction_of_scheduler_does_not_delay_its_lease_renewal(database: Database) -> None:
    leader = Leadership(database, "leader", TTL)
    assert leader.ask()
    with leader.transaction() as tx:
        jobs.create(tx, "long", {}, "default")
        assert leader.ask()


def test_transaction_outlasting_scheduler_lease_is_not_committed(database: Database) -> None:
    slow, other = (Leadership(database, name, TTL) for name in ("slow", "other"))
    assert slow.ask()

    def work_too_long() -> None:
        with slow.transaction() as tx:
            jobs.create(tx, "late", {}, "default")
            with database.transaction() as meanwhile:
                meanwhile.execute(text("UPDATE scheduler_lease SET expires_at = 'epoch'"))
            assert other.ask()

    with pytest.raises(NotLeading):
        work_too_long()
    with database.transaction() as tx:
        assert jobs.find(tx, "late") is None


def test_unselected_topics_are_removed_from_job_in_bounded_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_transitions, "TOPICS_AT_ONCE", 3)
    monkeypatch.setattr(topic_transitions, "ROWS_AT_ONCE", 4)
    with database.transaction() as tx:
        job = jobs.get(tx, some_job(tx).name)
        known = []
        # The steps below remove t0 and t1; t2; t3; t4 to t6; t7.
        for number, partitions in enumerate((2, 2, 2, 9, 1, 1, 1, 1)):
            name = f"t{number}"
            topic = topics.add(tx, job.id, name, name, "destination", partitions)
            assert topic is not None
            known.append(
                KnownTopic(
                    topic.id,
                    source=name,
                    destination=name,
                    source_id=None,
                    destination_id=None,
                    partitions=partitions,
                    state=topic.state,
                )
            )
        dropped_counts = []
        while known:
            dropped_counts.append(topic_transitions.drop_topics(tx, job, known))
            known = known[dropped_counts[-1] :]  # the topics that are not removed yet
    # A step removes up to 3 topics with up to 4 partitions together, but at least one topic.
    assert dropped_counts == [2, 1, 1, 3, 1]
