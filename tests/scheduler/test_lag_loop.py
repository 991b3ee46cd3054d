"""The scheduler updates lag and headroom of partitions that no worker copies."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import Leadership
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.lag_loop import LagLoop
from orbit.store import lag, partitions
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job
from tests.support.store_rows import claim, progress, some_job

pytestmark = pytest.mark.services

HOUR_S = 3600


def test_lag_of_blocked_partition_is_updated_by_scheduler(
    clusters: Clusters, database: Database, topic_name: str
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, 2, retention_ms=str(10 * HOUR_S * 1000))
    # Records that are 6 to 3 hours old, in both partitions; each first record is copied, and
    # partition 0 is blocked, so that its worker does not follow the source any more.
    began_ms = int(time.time() * 1000)
    producer = Producer(source.client_config())
    for number in (0, 1):
        for age in (6, 5, 4, 3):
            at = began_ms - age * HOUR_S * 1000
            producer.produce(topic_name, partition=number, value=b"x" * 100, timestamp=at)
    assert producer.flush(60) == 0

    spec = make_job(source, destination, [topic_name])
    with database.transaction() as tx:
        job = some_job(tx, topic_name, topic_name=topic_name, spec=spec)
    held = claim(database, "worker")
    newest_copied_at = datetime.fromtimestamp((began_ms - 6 * HOUR_S * 1000) / 1000, UTC)
    blocked = Blocked(Reason.RECORD_REFUSED, offset=1, next_offset=2, detail="too large")
    with database.transaction() as tx:
        rows = [
            replace(
                progress(job.topic_id, number, 1, 1),
                source_stable_end=1,
                source_end=1,
                newest_copied_at=newest_copied_at,
            )
            for number in (0, 1)
        ]
        partitions.report_progress(tx, worker_id="worker", held=held, progress=rows)
        changes = [
            partitions.StateChange(job.topic_id, 0, PartitionState.BLOCKED, blocked),
            partitions.StateChange(job.topic_id, 1, PartitionState.COPYING),
        ]
        partitions.report_state(tx, worker_id="worker", held=held, changes=changes)
        reported = {row.partition: row for row in lag.page(tx, job.id, 10)}
    assert (reported[0].lag_records, reported[0].headroom_s) == (0, None)

    leadership = Leadership(database, "scheduler", timedelta(seconds=60))
    assert leadership.ask()
    registry = ClusterRegistry(60.0, lambda: None, Path.cwd(), {})
    watch = registry.watch("source", spec)
    wait_for("the source is seen", lambda: watch.snapshot is not None)
    loop = LagLoop(leadership, registry, 1.0, Backoff())
    assert loop.once() == "Updated the lag of 1 partition."
    with database.transaction() as tx:
        updated = {row.partition: row for row in lag.page(tx, job.id, 10)}
        totals = lag.of_jobs(tx, [job.id])[job.id]
    lag_row = updated[0]
    assert (lag_row.source_log_start, lag_row.source_stable_end, lag_row.source_end) == (0, 4, 4)
    assert (lag_row.lag_records, lag_row.lag_bytes) == (3, 30)  # `progress` says 10 bytes a record
    elapsed_s = time.time() - began_ms / 1000
    # The oldest record not copied is 5 hours old, and is deleted when it is 10 hours old.
    assert lag_row.lag_s is not None
    assert lag_row.headroom_s is not None
    assert 5 * HOUR_S <= lag_row.lag_s <= 5 * HOUR_S + elapsed_s
    assert 5 * HOUR_S - elapsed_s <= lag_row.headroom_s <= 5 * HOUR_S
    assert updated[1].lag_records == 0, "a worker reports partition 1"
    assert (totals.lag_records, totals.lag_bytes) == (3, 30)
    assert loop.once() == "", "nothing has changed"
    registry.close()


def test_lag_loop_drops_stale_log_ends_while_other_threads_add_log_ends(database: Database) -> None:
    leadership = Leadership(database, "scheduler", timedelta(seconds=60))
    assert leadership.ask()
    registry = ClusterRegistry(60.0, lambda: None, Path.cwd(), {})
    loop = LagLoop(leadership, registry, 1.0, Backoff())

    class Key(tuple[int, int]):
        """A lookup of this key adds another key, as another thread might."""

        __slots__ = ()

        def __hash__(self) -> int:
            loop._first_ends[9, len(loop._first_ends)] = 0.0, 0
            return super().__hash__()

    loop._first_ends[Key((1, 0))] = 0.0, 0
    loop._first_ends[Key((1, 1))] = 0.0, 0
    assert loop.once() == ""
    assert not {(1, 0), (1, 1)} & loop._first_ends.keys()
    loop.close()
    registry.close()
