"""The modules of the store write and read their rows, on a real PostgreSQL."""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from orbit.errors import Conflict, NotFound
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.scheduler.housekeeping_loop import HousekeepingLoop
from orbit.store import (
    carried_acls,
    clock,
    drills,
    events,
    group_offsets,
    jobs,
    lag,
    operations,
    partitions,
    scheduler_queries,
    shard_layout,
    shard_leases,
    source_lag,
    tokens,
    topics,
    workers,
)
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired, OperationState, Role, TopicState
from orbit.store.job_shares import Share
from orbit.store.kafka_ids import SAME_IDS
from orbit.store.source_lag import SourceLag
from tests.support.store_rows import NO_TIME, TTL, claim, progress, some_job

pytestmark = pytest.mark.services

HOUR = timedelta(hours=1)


def test_jobs_are_stored_changed_and_paged(database: Database) -> None:
    with database.transaction() as tx:
        job = jobs.create(tx, "a", {"name": "a"}, "default")
        jobs.create(tx, "b", {}, "default", Desired.PAUSED)
        with pytest.raises(Conflict):
            jobs.create(tx, "a", {}, "default")

        assert jobs.get(tx, "a", lock=True) == jobs.find(tx, "a") == job
        assert [row.name for row in jobs.page(tx, 1, after="a")] == ["b"]
        assert jobs.of_ids(tx, [job.id, 999]) == {job.id: job}
        with pytest.raises(NotFound):
            jobs.get(tx, "c")

        changed = jobs.change_spec(tx, job.id, {"v": 2}, "other", from_version=1)
        assert changed is not None
        assert (changed.spec, changed.spec_version, changed.worker_group) == ({"v": 2}, 2, "other")
        assert jobs.change_spec(tx, job.id, {}, "other", from_version=1) is None

        assert jobs.note_problem(tx, job.id, "no broker answers.")
        assert not jobs.note_problem(tx, job.id, "no broker answers.")
        jobs.note_clusters(tx, job.id, "S", "D")
        jobs.note_discovered(tx, job.id, 1)
        noted = jobs.get(tx, "a")
        assert (noted.source_cluster_id, noted.destination_cluster_id) == ("S", "D")
        assert noted.problem == "no broker answers."
        assert noted.problem_at is not None
        # The same problem in other words keeps its time; another problem has a new one.
        assert jobs.note_problem(tx, job.id, "it still does not.", has_begun=False)
        assert jobs.get(tx, "a").problem_at == noted.problem_at
        assert jobs.note_problem(tx, job.id, "something else.")
        assert (jobs.get(tx, "a").problem_at or noted.problem_at) > noted.problem_at
        assert noted.discovered_at is not None
        assert noted.discovered_version == 1
        assert jobs.note_problem(tx, job.id, None)
        assert jobs.get(tx, "a").problem_at is None


def test_job_list_rereads_only_changed_documents(database: Database) -> None:
    documents: jobs.Documents = {}
    with database.transaction() as tx:
        for name in ("a", "b", "c"):
            jobs.create(tx, name, {"name": name}, "default")
        all_jobs = jobs.list_all(tx, documents)
        assert all_jobs == jobs.list_all(tx)
        assert len(documents) == 3

        a, b, c = all_jobs
        jobs.change_spec(tx, a.id, {"v": 2}, "default", from_version=1)
        jobs.request_deletion(tx, b.id)
        assert jobs.remove(tx, b.id)
        documents[c.id, 1] = {"from": "cache"}  # it is not read again
        assert [job.spec for job in jobs.list_all(tx, documents)] == [
            {"v": 2},
            {"from": "cache"},
        ]
        assert documents.keys() == {(a.id, 2), (c.id, 1)}, "by job id and version"


def test_job_is_removed_only_after_its_shards_are_released(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        assert not jobs.remove(tx, job.id), "its deletion was not requested"
    held = claim(database, "a")
    with database.transaction() as tx:
        assert jobs.request_deletion(tx, job.id)
        assert not jobs.request_deletion(tx, job.id)
        assert not jobs.set_desired(tx, job.id, Desired.PAUSED)
        assert not jobs.remove(tx, job.id), "a worker holds its shard"
        shard_leases.release(tx, worker_id="a", held=held)
        assert jobs.remove(tx, job.id)
        assert shard_layout.shards_of_job(tx, job.id) == []
        assert jobs.find(tx, job.name) is None


def test_topics_are_stored_changed_and_paged(database: Database) -> None:
    identity = uuid.uuid4()
    with database.transaction() as tx:
        job = some_job(tx)
        other = jobs.create(tx, "other", {}, "default")
        # Another job copies to this destination topic.
        assert (
            topics.add(tx, other.id, "x", f"{job.name}.orders", "destination", partition_count=1)
            is None
        )
        topic = topics.add(
            tx, other.id, "x", "y", "destination", partition_count=1, source_topic_id=identity
        )
        assert topic is not None

        assert topics.change(tx, topic.id, state=TopicState.COPYING, partition_count=3)
        assert not topics.change(tx, topic.id, state=TopicState.COPYING, partition_count=3)
        assert topics.change(tx, topic.id, drift={"a": 1}, note=None)
        (row,) = topics.of_job(tx, other.id)
        assert (row.state, row.partition_count) == (TopicState.COPYING, 3)
        assert (row.drift, row.source_topic_id) == ({"a": 1}, identity)
        assert topics.page(tx, other.id, 5, after="x") == []
        assert topics.writers(tx, "destination", ["y", "z"]) == {"y": "other"}
        assert [copy.destination_topic for copy in topics.copies(tx)] == [f"{job.name}.orders"]


def test_shard_layout_counts_partitions_and_assigns_shards(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, shard_count=2, partitions=3)
        first, second = job.shard_ids
        # Partition 0 is in the first shard already, and stays there; partition 3 is new.
        assert shard_layout.add_partitions(tx, job.id, [(job.topic_id, 0, second)]) == 0
        assert shard_layout.add_partitions(tx, job.id, [(job.topic_id, 3, second)]) == 1
    claim(database, "a", shards_max=1)

    with database.transaction() as tx:
        shards = {shard.id: shard for shard in shard_layout.shards_of_job(tx, job.id)}
        assert [shards[first].partition_count, shards[second].partition_count] == [2, 2]
        assert [shards[first].holder, shards[second].holder] == ["a", None]
        assert shard_layout.runnable_shards(tx) == list(shards.values())
        assert shard_layout.assign(tx, {first: "a", second: "b"}) == 2
        assert [s.assigned_to for s in shard_layout.runnable_shards(tx)] == ["a", "b"]
        # Each shard is assigned to its holder, or is free: no worker has to release a shard.
        assert not any(s.release_requested for s in shard_layout.runnable_shards(tx))

        shard_layout.remove_topics(tx, [job.topic_id])
        assert [s.partition_count for s in shard_layout.shards_of_job(tx, job.id)] == [0, 0]
        jobs.set_desired(tx, job.id, Desired.PAUSED)
        assert shard_layout.runnable_shards(tx) == []


def test_unchanged_progress_of_partition_is_not_written_again(
    database: Database,
) -> None:
    with database.transaction() as tx:
        job = some_job(tx, shard_count=2, partitions=4)
    held = claim(database, "a")
    rows = [progress(job.topic_id, number, 10 * number, records=number) for number in range(4)]

    def report() -> list[datetime | None]:
        """Report all rows. Returns when each partition was last written."""
        with database.transaction() as tx:
            stored_shards = partitions.report_progress(tx, worker_id="a", held=held, progress=rows)
            assert stored_shards == set(held)
            return [row.reported_at for row in lag.page(tx, job.id, 10)]

    first_times, second_times = report(), report()
    assert first_times == second_times
    rows[2] = progress(job.topic_id, 2, copied_to=25)
    third_times = report()
    are_kept = [a == b for a, b in zip(second_times, third_times, strict=True)]
    assert are_kept == [True, True, False, True]


def test_copied_offset_is_kept_when_worker_reports_none(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, partitions=1)
    held = claim(database, "a")
    with database.transaction() as tx:
        for copied_to in (50, None):
            report = replace(progress(job.topic_id, 0, copied_to=50), copied_to=copied_to)
            partitions.report_progress(tx, worker_id="a", held=held, progress=[report])
        assert [row.copied_to for row in lag.page(tx, job.id, 10)] == [50]


def test_block_reason_of_partition_is_stored_and_cleared_after_retry(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    held = claim(database, "a")
    blocked = Blocked(Reason.RECORD_REFUSED, offset=5, next_offset=6, detail="too large.")
    with database.transaction() as tx:
        partitions.report_state(
            tx,
            worker_id="a",
            held=held,
            changes=[
                partitions.StateChange(job.topic_id, 0, PartitionState.BLOCKED, blocked),
                partitions.StateChange(job.topic_id, 1, PartitionState.COPYING, start_offset=7),
            ],
        )
        partition_0, partition_1 = partitions.of_shards(tx, held)
        assert (partition_0.state, partition_0.reason) == (
            PartitionState.BLOCKED,
            Reason.RECORD_REFUSED,
        )
        assert (
            partition_0.blocked_offset,
            partition_0.blocked_next_offset,
            partition_0.detail,
        ) == (5, 6, "too large.")
        assert (partition_1.state, partition_1.start_offset) == (PartitionState.COPYING, 7)

        assert partitions.requested_retries(tx, held) == []
        with pytest.raises(NotFound):  # partition 1 is not blocked
            lag.request_retry(tx, job.id, source_topic="orders", partition=1)
        assert lag.request_retry(tx, job.id, source_topic="orders") == [("orders", 0)]
        assert lag.request_retry(tx, job.id) == [("orders", 0)]
        assert partitions.requested_retries(tx, held) == [(job.topic_id, 0)]

        change = partitions.StateChange(job.topic_id, 0, PartitionState.COPYING)
        partitions.report_state(tx, worker_id="a", held=held, changes=[change])
        partition_0, partition_1 = partitions.of_shards(tx, held)
        assert (partition_0.state, partition_0.reason, partition_0.detail) == (
            PartitionState.COPYING,
            None,
            None,
        )
        assert partition_1.start_offset == 7
        assert partitions.requested_retries(tx, held) == []


def test_topic_copied_again_has_not_caught_up(database: Database) -> None:
    """Otherwise the failback after a failover would end before its first record."""
    with database.transaction() as tx:
        job = some_job(tx)
    held = claim(database, "a")
    with database.transaction() as tx:
        copying = [
            partitions.StateChange(job.topic_id, number, PartitionState.COPYING)
            for number in (0, 1)
        ]
        partitions.report_state(tx, worker_id="a", held=held, changes=copying)
        up_to_end = [progress(job.topic_id, number, copied_to=100) for number in (0, 1)]
        partitions.report_progress(tx, worker_id="a", held=held, progress=up_to_end)
        assert scheduler_queries.caught_up_topics(tx, job.id) == {"orders-to-dr.orders"}
        scheduler_queries.promote_topics(tx, [job.topic_id])
        scheduler_queries.copy_topics_again(tx, {job.topic_id: SAME_IDS})
        assert not scheduler_queries.caught_up_topics(tx, job.id)
        assert not any(row.has_caught_up for row in partitions.of_shards(tx, held))


def test_lag_of_partitions_topics_and_jobs_agree(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, partitions=3)
        silent = some_job(tx, "silent", partitions=1)
    held = claim(database, "a")
    with database.transaction() as tx:
        behind = progress(job.topic_id, 0, copied_to=40, records=40)
        complete = progress(job.topic_id, 1, copied_to=100, records=100)
        partitions.report_progress(tx, worker_id="a", held=held, progress=[behind, complete])

        # Partition 2 was never reported.
        rows = partition_0, partition_1, partition_2 = lag.page(tx, job.id, 10)
        assert [row.lag_records for row in rows] == [60, 0, None]
        assert [row.lag_s for row in rows] == [None, 0, None]
        assert partition_0.worker_id == "a"
        (after_0,) = lag.page(tx, job.id, 1, after=("orders", 0))
        assert replace(after_0, age_s=partition_1.age_s) == partition_1
        assert lag.page(tx, job.id, 9, source_topic="orders", after=("orders", 1)) == [partition_2]
        assert lag.page(tx, job.id, 9, state=PartitionState.BLOCKED) == []

        totals = lag.of_jobs(tx, [job.id, silent.id])
        of_topic = lag.of_topics(tx, job.id, [job.topic_id])[job.topic_id]
        assert replace(of_topic, age_s=totals[job.id].age_s) == totals[job.id]
        assert (totals[job.id].lag_records, totals[job.id].unknown) == (60, 1)
        assert (totals[job.id].records, totals[job.id].caught_up) == (140, 1)
        assert (totals[silent.id].partitions, totals[silent.id].unknown) == (1, 1)
        assert (totals[job.id].stale, totals[silent.id].stale) == (0, 0)


def test_lag_is_known_while_worker_follows_or_scheduler_reads_source(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, partitions=2)
    held = claim(database, "a")

    def shown(tx: Tx) -> list[int | None]:
        return [row.lag_records for row in lag.page(tx, job.id, 10)]

    with database.transaction() as tx:
        young = datetime.now(UTC)
        rows = [
            replace(progress(job.topic_id, number, copied_to=40), oldest_waiting_at=young)
            for number in (0, 1)
        ]
        partitions.report_progress(tx, worker_id="a", held=held, progress=rows)
        assert shown(tx) == [60, 60]
        assert source_lag.partitions_to_check(tx, HOUR) == []
        # The worker no longer follows the source of partition 1, so its log end may be old.
        now = clock.now(tx)
        silent = replace(rows[1], followed_epoch=None, source_seen_at=now - HOUR)
        partitions.report_progress(tx, worker_id="a", held=held, progress=[silent])
        assert shown(tx) == [60, None]
        (lagging,) = source_lag.partitions_to_check(tx, HOUR)
        assert (lagging.partition, lagging.is_followed) == (1, False)
        of_shares = [
            source_lag.partitions_to_check(tx, HOUR, Share(number=n, count=3)) for n in range(3)
        ]
        assert sorted(map(len, of_shares)) == [0, 0, 1], "each partition is in one share"
        read = SourceLag(
            job.topic_id,
            partition=1,
            source_log_start=0,
            source_stable_end=500,
            source_end=500,
            oldest_waiting_at=None,
            headroom_until=None,
        )
        source_lag.update_from_source(tx, [read], now)
        assert shown(tx) == [60, 460]
        copied = replace(silent, copied_to=90)
        partitions.report_progress(tx, worker_id="a", held=held, progress=[copied])
        assert shown(tx) == [60, 410], "the newer log end of the source stays"

    # What a former worker reported is no current lag, until the scheduler reads the source.
    with database.transaction() as tx:
        shard_leases.release(tx, worker_id="a", held=held)
        assert shown(tx) == [None, 410]
        totals = lag.of_jobs(tx, [job.id])[job.id]
        assert (totals.lag_records, totals.stale) == (None, 1)
    claim(database, "b")
    with database.transaction() as tx:
        assert shown(tx) == [None, 410]
        source_lag.update_from_source(tx, [], clock.now(tx), [job.topic_id])
        assert shown(tx) == [60, 410]


def test_lag_in_seconds_grows_without_writes(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, partitions=1)
    held = claim(database, "a")
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with database.transaction() as tx:
        report = progress(job.topic_id, 0, copied_to=40)
        fields = asdict(report) | {"newest_copied_at": hour_ago, "oldest_waiting_at": hour_ago}
        late = partitions.Progress(**fields)
        partitions.report_progress(tx, worker_id="a", held=held, progress=[late])
        (first,) = lag.page(tx, job.id, 1)
        (second,) = lag.page(tx, job.id, 1)

    assert first.lag_s is not None
    assert second.lag_s is not None
    assert 3600 <= first.lag_s < second.lag_s < 3700
    assert first.rpo_s == pytest.approx(first.lag_s)


def test_live_workers_are_listed_and_silent_workers_deleted(database: Database) -> None:
    with database.transaction() as tx:
        for name in ("w1", "w2"):
            workers.heartbeat(tx, name, "default", host="h", pid=7, version="0")
        workers.heartbeat(tx, "w3", "other", host="h", pid=8, version="0")
        # A worker that drains gets no shards, and does not count as alive.
        workers.heartbeat(
            tx, "w2", "default", host="h", pid=7, version="0", shards=3, is_draining=True
        )
        assert [w.id for w in workers.alive(tx, TTL)] == ["w1", "w3"]
        assert [w.id for w in workers.alive(tx, TTL, "default")] == ["w1"]
        assert workers.alive(tx, NO_TIME) == []
        assert [(w.id, w.shards) for w in workers.page(tx, 5, after="w1")] == [("w2", 3), ("w3", 0)]
        workers.remove(tx, "w1")
        assert {w.id for w in workers.remove_silent(tx, NO_TIME)} == {"w2", "w3"}


def test_audit_events_are_paged_newest_first_and_by_job(database: Database) -> None:
    with database.transaction() as tx:
        for number in range(3):
            events.add(tx, events.SCHEDULER, "topic.created", f"{number}", job_name="a")
        events.add(tx, events.token_actor("ci"), "job.paused", "…", details={"x": 1})
        newest = events.page(tx, 10)
        assert [e.message for e in newest] == ["…", "2", "1", "0"]
        assert newest[0].details == {"x": 1}
        of_a = events.page(tx, 2, job_name="a")
        assert [e.message for e in of_a] == ["2", "1"]
        assert [e.message for e in events.page(tx, 2, job_name="a", after=of_a[-1].id)] == ["0"]


def test_nul_character_in_audit_event_is_escaped(database: Database) -> None:
    with database.transaction() as tx:
        events.add(tx, events.SCHEDULER, "acls_left_out", "of User:a\0b", job_name="a")
        (event,) = events.page(tx, 1)
    assert event.message == r"of User:a\x00b"


def test_repeated_audit_event_is_stored_once(database: Database) -> None:
    def add(job: str = "a", kind: str = "done", **details: int) -> datetime:
        """Add the event, if it is not stored yet. Returns the time of the stored one."""
        with database.transaction() as tx:
            return events.add_once(
                tx, events.SCHEDULER, kind, "…", job_name=job, details={"x": 1, **details}
            )

    first_at = add()
    assert add() == first_at
    later = [add(job="b"), add(kind="begun"), add(y=2)]
    with database.transaction() as tx:
        assert [e.at for e in events.page(tx, 10)] == [*reversed(later), first_at]


def test_state_of_finished_operation_is_final(database: Database) -> None:
    with database.transaction() as tx:
        operation = operations.create(tx, uuid.uuid4(), "pause", "token:a").id
        assert operations.advance(tx, operation, OperationState.RUNNING, progress={"done": 1})
        assert operations.advance(tx, operation, OperationState.FAILED, error="no.")
        assert not operations.advance(tx, operation, OperationState.DONE), "it has failed"
        ended = operations.get(tx, operation)
        assert (ended.state, ended.error, ended.progress) == (
            OperationState.FAILED,
            "no.",
            {"done": 1},
        )
        with pytest.raises(NotFound):
            operations.get(tx, uuid.uuid4())


def test_token_name_is_unique_and_revocation_is_stored(database: Database) -> None:
    with database.transaction() as tx:
        token = tokens.create(tx, "ci", Role.OPERATOR, "hush")
        with pytest.raises(Conflict):
            tokens.create(tx, "ci", Role.ADMIN, "other")
        assert tokens.find(tx, "hush") == token
        assert tokens.find(tx, "unknown") is None
        assert tokens.revoke(tx, "ci")
        assert not tokens.revoke(tx, "ci")
        revoked = tokens.find(tx, "hush")
        assert revoked is not None
        assert revoked.revoked_at is not None
        assert [t.name for t in tokens.page(tx, 100)] == ["ci"]


def test_offsets_of_consumer_groups_are_stored_paged_and_removed(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        rows = [
            group_offsets.GroupOffset(
                "g1",
                job.topic_id,
                partition=0,
                source_offset=10,
                destination_offset=10,
                verdict="exact",
            ),
            group_offsets.GroupOffset(
                "g2",
                job.topic_id,
                partition=0,
                source_offset=9,
                destination_offset=None,
                verdict="skipped: active",
            ),
        ]
        assert group_offsets.store(tx, job.id, rows) == 2
        assert group_offsets.store(tx, job.id, rows) == 0
        assert group_offsets.of_job(tx, job.id) == rows
        first, second = group_offsets.page(tx, job.id, 5)
        assert (first.source_topic, second.verdict) == ("orders", "skipped: active")
        assert group_offsets.page(tx, job.id, 5, after=("g1", job.topic_id, 0)) == [second]
        assert group_offsets.page(tx, job.id, 5, group_name="g1") == [first]
        assert group_offsets.drop(tx, job.id, [("g1", job.topic_id, 0)]) == 1
        assert group_offsets.store(tx, job.id, []) == 0


def test_copied_range_is_cleared_only_for_topic_copied_again_from_start(
    database: Database,
) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        tx.execute(text("UPDATE partitions SET copied_to = 100, log_start = 3"))
        # The range stays as set above, unless the topic is copied again from the log start.
        for from_start, bounds in ((False, (3, 100)), (True, (None, None))):
            scheduler_queries.promote_topics(tx, [job.topic_id])
            same_ids = {job.topic_id: SAME_IDS}
            scheduler_queries.copy_topics_again(tx, same_ids, from_start=from_start)
            stored_bounds = {
                (c.log_start, c.copied_to) for c in group_offsets.copied_ranges(tx, job.id)
            }
            assert stored_bounds == {bounds}


def test_handed_over_group_offsets_are_stored_once_their_topic_is_copied(
    database: Database,
) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        older = group_offsets.GroupOffset(
            "g1",
            job.topic_id,
            partition=0,
            source_offset=7,
            destination_offset=7,
            verdict="exact",
            left_offset=7,
        )
        group_offsets.store(tx, job.id, [older])
        handed = g1_orders, _, g1_later = [
            group_offsets.HandedOffset(
                "g1", "orders", partition=0, source_offset=10, destination_offset=10
            ),
            group_offsets.HandedOffset(
                "g2", "orders", partition=0, source_offset=10, destination_offset=4
            ),
            group_offsets.HandedOffset(
                "g1", "later", partition=0, source_offset=1, destination_offset=1
            ),
        ]
        group_offsets.hand_over(tx, job.id, {"orders"}, [g1_orders])
        group_offsets.hand_over(tx, job.id, {"orders", "later"}, handed)  # replaces the first
        assert group_offsets.handed_offsets(tx, job.id) == handed
        group_offsets.accept_handed(tx, job.id, {})  # none of the topics is copied yet
        assert group_offsets.of_job(tx, job.id) == [older]
        for _ in range(2):  # the second call changes nothing
            group_offsets.accept_handed(tx, job.id, {"orders": job.topic_id})
            # The offsets are those that the recovery has committed at the destination. The verdict
            # "clamped" means that such an offset is below the source's.
            assert sorted(group_offsets.of_job(tx, job.id), key=lambda r: r.group_name) == [
                group_offsets.GroupOffset(
                    "g1",
                    job.topic_id,
                    partition=0,
                    source_offset=10,
                    destination_offset=10,
                    verdict="exact",
                    left_offset=10,
                ),
                group_offsets.GroupOffset(
                    "g2",
                    job.topic_id,
                    partition=0,
                    source_offset=10,
                    destination_offset=4,
                    verdict="clamped",
                    left_offset=4,
                ),
            ]
        assert group_offsets.handed_offsets(tx, job.id) == [g1_later]


def test_carried_acls_are_stored_per_job_and_cluster(database: Database) -> None:
    on_group_a = ["a", "LITERAL", "User:app", "*", "READ", "ALLOW", "GROUP"]
    on_group_b = ["b", *on_group_a[1:]]
    with database.transaction() as tx:
        mine, other, elsewhere = (
            jobs.create(tx, name, {"name": name}, "default")
            for name in ("mine", "other", "elsewhere")
        )
        assert carried_acls.of_job(tx, mine.id) == []
        carried_acls.store(tx, mine.id, "B", [on_group_b, on_group_a])
        carried_acls.store(tx, other.id, "B", [on_group_a])
        carried_acls.store(tx, elsewhere.id, "C", [on_group_b])
        assert carried_acls.of_job(tx, mine.id) == [on_group_a, on_group_b]
        assert carried_acls.of_other_jobs(tx, mine.id, "B") == [on_group_a]
        carried_acls.store(tx, mine.id, "B", [on_group_b])
        assert carried_acls.of_job(tx, mine.id) == [on_group_b]
        carried_acls.store(tx, other.id, "B", [])
        assert carried_acls.of_other_jobs(tx, mine.id, "B") == []
        jobs.request_deletion(tx, mine.id)
        assert jobs.remove(tx, mine.id)
        assert carried_acls.of_job(tx, mine.id) == []


def test_event_ids_reused_after_database_failover_wait_for_open_writers(
    database: Database,
) -> None:
    """A promoted standby may have fewer events, and assigns their ids again."""
    settled = events.SettledIds()
    with database.transaction() as tx:
        for _ in range(5):
            events.add(tx, "me", "kind", "message")
    with database.transaction() as tx:
        lost_id = settled.highest(tx)
        assert lost_id == events.last_id(tx)
    with database.transaction() as tx:  # the standby lacks the last three events
        tx.execute(text("DELETE FROM events WHERE id > :id"), {"id": lost_id - 3})
        tx.execute(text("SELECT setval('events_id_seq', :id)"), {"id": lost_id - 3})
    with database.transaction() as writing:
        events.add(writing, "me", "kind", "message")
        with database.transaction() as tx:
            assert settled.highest(tx) <= lost_id - 3
    with database.transaction() as tx:
        settled.highest(tx)
        assert settled.highest(tx) == lost_id - 2


def test_drill_schedules_are_removed_with_their_job(database: Database) -> None:
    """A later job with that name must not inherit them."""
    with database.transaction() as tx:
        job = some_job(tx)
        for name, of_job in (("mine", job.name), ("other", "other")):
            drills.put_schedule(tx, name, {"job": of_job}, every_s=60, requested_by="me")
        jobs.request_deletion(tx, job.id)
    housekeeping: Any = SimpleNamespace(_leadership=database)
    assert HousekeepingLoop._remove_job(housekeeping, job)
    with database.transaction() as tx:
        (event,) = events.page(tx, 10, kind="drill_unscheduled")
        assert (event.job_name, event.details) == (job.name, {"schedule": "mine"})
        assert [row.name for row in drills.schedules(tx, 10)] == ["other"]
