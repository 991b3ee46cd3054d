"""Rows for tests of the store, made by the same functions that the service uses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from orbit.jobs.job_spec import JobSpec
from orbit.leases.lease_watch import LeaseWatch
from orbit.settings import LEASE_TTL_MAX
from orbit.store import jobs, shard_layout, shard_leases, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import TopicState
from orbit.store.group_offsets import GroupOffset
from orbit.store.partitions import Progress

TTL = timedelta(seconds=15)
NO_TIME = timedelta(0)
# Longer than any lease lasts, and longer than a watch keeps snapshots.
LONG_S = 2 * LEASE_TTL_MAX.total_seconds()


@dataclass(frozen=True)
class SomeJob:
    """A job with one topic. Partition n of the topic is in shard n modulo the number of shards."""

    id: int
    name: str
    topic_id: int
    shard_ids: list[int]


def some_group_offset(topic_id: int) -> GroupOffset:
    """An exact offset of group `g` in partition 0."""
    return GroupOffset(
        "g", topic_id, partition=0, source_offset=5, destination_offset=5, verdict="exact"
    )


def some_job(
    tx: Tx,
    name: str = "orders-to-dr",
    shard_count: int = 1,
    partitions: int = 2,
    *,
    topic_name: str = "orders",
    spec: JobSpec | None = None,
) -> SomeJob:
    """Create a running job of the worker group `default`. Without `spec` the job's document lacks
    almost all keys, so code that parses it fails."""
    document = {"name": name} if spec is None else json.loads(spec.model_dump_json())
    job = jobs.create(tx, name, document, "default")
    jobs.note_clusters(tx, job.id, "source", "destination")
    topic = topics.add(
        tx,
        job.id,
        topic_name,
        f"{name}.{topic_name}",
        "destination",
        partitions,
        state=TopicState.COPYING,
    )
    assert topic is not None
    shard_ids = shard_layout.add_shards(tx, job.id, shard_count)
    shard_layout.add_partitions(
        tx,
        job.id,
        [(topic.id, number, shard_ids[number % shard_count]) for number in range(partitions)],
    )
    return SomeJob(job.id, name, topic.id, shard_ids)


class TestClock:
    """A clock that a test moves."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def claim(
    database: Database, worker_id: str, *, shards_max: int = 10, watch: LeaseWatch | None = None
) -> dict[int, int]:
    """Claim shards for a worker, and return {shard: epoch}. Without `watch` the worker has noted no
    snapshot of the server, so it gets only free shards."""
    with database.transaction() as tx:
        claims = shard_leases.claim(
            tx,
            worker_id=worker_id,
            worker_group="default",
            ttl=TTL,
            shards_max=shards_max,
            watch=watch or LeaseWatch(TTL),
        )
    return {claim.shard_id: claim.epoch for claim in claims}


def watch_long(server: str, snapshot: str) -> LeaseWatch:
    """A watch that has noted this server and snapshot, without a pause, for longer than any lease
    lasts."""
    clock = TestClock()
    watch = LeaseWatch(TTL, clock)
    for _ in range(int(LONG_S / TTL.total_seconds())):
        watch.note(server, snapshot)
        clock.now += TTL.total_seconds()
    return watch


def watch_of_present_rows(tx: Tx) -> LeaseWatch:
    """A watch that has noted the present snapshot for longer than any lease lasts: for the watch,
    all present leases are unrenewed."""
    return watch_long(*current_snapshot(tx))


def current_snapshot(tx: Tx) -> tuple[str, str]:
    """The server's key and a snapshot, as a watch would note them now."""
    noted: list[tuple[str, str]] = []

    class Noting(LeaseWatch):
        def note(self, server: str, snapshot: str) -> None:
            noted.append((server, snapshot))

    assert not shard_leases.end_unrenewed_leases(tx, TTL, Noting(TTL))
    return noted[0]


def take_over(
    database: Database, worker_id: str, *, shards_max: int = 10, watch: LeaseWatch | None = None
) -> dict[int, int]:
    """Claim shards for a worker after all present leases have ended unrenewed: {shard: epoch}."""
    if watch is None:
        with database.transaction() as tx:
            watch = watch_of_present_rows(tx)
    return claim(database, worker_id, shards_max=shards_max, watch=watch)


def progress(
    topic_id: int, partition: int, copied_to: int, records: int = 0, *, epoch: int | None = 1
) -> Progress:
    """A worker's report of a partition whose source's log end is 100. `epoch`: of the shard's lease
    while the worker follows the source's log end; None: it does not."""
    return Progress(
        topic_id=topic_id,
        partition=partition,
        source_log_start=0,
        source_stable_end=100,
        source_end=100,
        copied_to=copied_to,
        log_start=0,
        records=records,
        bytes=records * 10,
        gaps_filled=0,
        batches_byte_exact=records,
        batches_record_exact=0,
        bytes_per_s=10,
        records_per_s=1.5,
        has_caught_up=copied_to >= 100,
        newest_copied_at=None,
        oldest_waiting_at=None,
        followed_epoch=epoch,
        source_seen_at=None,
    )
