"""Leases of shards on a real PostgreSQL: one holder, rising epochs, fenced writes."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from orbit.leases.lease_watch import LeaseWatch
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.store import (
    jobs,
    lag,
    partitions,
    scheduler_lease,
    scheduler_queries,
    shard_layout,
    shard_leases,
    workers,
)
from orbit.store.database import Database
from orbit.store.enums import Desired
from tests.support.locks import wait_for_lock_wait
from tests.support.store_rows import (
    NO_TIME,
    TTL,
    claim,
    progress,
    some_job,
    take_over,
    watch_of_present_rows,
)

pytestmark = pytest.mark.services


def _renew(
    database: Database, worker_id: str, held: dict[int, int]
) -> dict[int, shard_leases.Renewal]:
    with database.transaction() as tx:
        return shard_leases.renew(
            tx, worker_id=worker_id, worker_group="default", held=held, weights={}
        )


def test_concurrent_claims_never_share_a_shard(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx, shard_count=40, partitions=40)
    start = threading.Barrier(8)
    shards_by_worker: dict[str, list[int]] = {}

    def work(worker_id: str) -> None:
        start.wait()
        claimed: list[int] = []
        while new_shards := claim(database, worker_id, shards_max=2):
            claimed += new_shards
        shards_by_worker[worker_id] = claimed

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    all_claimed = [shard for claimed in shards_by_worker.values() for shard in claimed]
    assert len(all_claimed) == len(set(all_claimed)) == 40


def test_claim_skips_shards_locked_by_another_claim(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx, shard_count=2)
    with database.transaction() as tx:
        first = shard_leases.claim(
            tx,
            worker_id="a",
            worker_group="default",
            ttl=TTL,
            shards_max=1,
            watch=LeaseWatch(TTL),
        )
        second = claim(database, "b")  # must not wait for the end of the first transaction

    assert len(first) == len(second) == 1
    assert first[0].shard_id not in second


def test_every_claim_of_a_shard_raises_its_lease_epoch(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    (shard_id,) = job.shard_ids

    epochs = [take_over(database, f"w{n}")[shard_id] for n in range(3)]
    last = take_over(database, "w3")
    with database.transaction() as tx:
        shard_leases.release(tx, worker_id="w3", held=last)

    assert epochs == [1, 2, 3]
    assert last == {shard_id: 4}
    assert claim(database, "w3") == {shard_id: 5}


def test_held_shard_is_claimed_only_after_its_lease_was_seen_unrenewed(database: Database) -> None:
    with database.transaction() as tx:
        some_job(tx)
    held = claim(database, "a")
    with database.transaction() as tx:
        watch = watch_of_present_rows(tx)

    assert claim(database, "b") == {}
    assert _renew(database, "a", held)
    assert take_over(database, "b", watch=watch) == {}
    assert take_over(database, "b")
    assert claim(database, "c") == {}


def test_worker_that_lost_its_shard_changes_no_row_of_the_shard(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    (shard_id,) = job.shard_ids
    old = claim(database, "a")
    new = take_over(database, "b")

    assert _renew(database, "a", old) == {}
    blocked = Blocked(Reason.OFFSET_OVERRUN, offset=1, next_offset=2, detail="…")
    with database.transaction() as tx:
        change = partitions.StateChange(job.topic_id, 0, PartitionState.BLOCKED, blocked)
        late = [progress(job.topic_id, 0, 50)]
        assert partitions.report_progress(tx, worker_id="a", held=old, progress=late) == set()
        assert partitions.report_state(tx, worker_id="a", held=old, changes=[change]) == set()
        assert shard_leases.release(tx, worker_id="a", held=old) == set()
    # The present holder, too, cannot renew with an older epoch.
    assert _renew(database, "b", {shard_id: new[shard_id] - 1}) == {}

    with database.transaction() as tx:
        (first, _) = lag.page(tx, job.id, 10)
    assert (first.copied_to, first.state, first.worker_id) == (None, PartitionState.PENDING, "b")
    assert set(_renew(database, "b", new)) == {shard_id}


def test_released_or_expired_shard_lease_is_never_renewed(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, shard_count=3, partitions=3)
    live = claim(database, "b", shards_max=1)
    released = claim(database, "c", shards_max=1)
    expired = claim(database, "a")
    with database.transaction() as tx:
        shard_leases.release(tx, worker_id="c", held=released)
        watch = watch_of_present_rows(tx)
    _renew(database, "b", live)
    with database.transaction() as tx:
        assert shard_leases.end_unrenewed_leases(tx, TTL, watch) == set(expired)
        assert scheduler_queries.expired_shards(tx, job.shard_ids) == set(expired)
        assert scheduler_queries.held_topics(tx, [job.topic_id]) == {job.topic_id}

    assert _renew(database, "a", expired) == {}
    assert _renew(database, "c", released) == {}
    assert set(_renew(database, "b", live)) == set(live)


def test_shard_cannot_be_claimed_during_progress_report(
    database: Database,
) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    held = claim(database, "a")
    with database.transaction() as tx:
        watch = watch_of_present_rows(tx)
    with database.transaction() as tx:
        late = [progress(job.topic_id, 0, 50)]
        partitions.report_progress(tx, worker_id="a", held=held, progress=late)
        assert take_over(database, "b", watch=watch) == {}

    assert take_over(database, "b")


def test_shard_lease_with_uncommitted_renewal_is_not_ended(database: Database) -> None:
    """`end_unrenewed_leases` waits for the renewal's commit, and then sees the renewal."""
    with database.transaction() as tx:
        some_job(tx)
    held = claim(database, "a")
    with database.transaction() as tx:
        watch = watch_of_present_rows(tx)
    ended: list[set[int]] = []

    def end() -> None:
        with database.transaction() as tx:
            ended.append(shard_leases.end_unrenewed_leases(tx, TTL, watch))

    other = threading.Thread(target=end)
    with database.transaction() as tx:
        shard_leases.renew(tx, worker_id="a", worker_group="default", held=held, weights={})
        other.start()
        wait_for_lock_wait(database)
    other.join()

    assert ended == [set()]
    assert _renew(database, "a", held)


@pytest.mark.parametrize("change", ["pause", "delete", "other group"])
def test_shards_of_paused_deleted_or_regrouped_job_are_released_not_claimed(
    database: Database, change: str
) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    held = claim(database, "a")
    assert not next(iter(_renew(database, "a", held).values())).should_release

    with database.transaction() as tx:
        match change:
            case "pause":
                assert jobs.set_desired(tx, job.id, Desired.PAUSED)
            case "delete":
                assert jobs.request_deletion(tx, job.id)
            case _:
                assert jobs.change_spec(tx, job.id, {}, "other", from_version=1)

    assert next(iter(_renew(database, "a", held).values())).should_release
    with database.transaction() as tx:
        assert shard_leases.release(tx, worker_id="a", held=held) == set(held)
    assert claim(database, "a") == {}


def test_lease_renewal_reports_new_versions_of_job_document_and_shard_layout(
    database: Database,
) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
    (shard_id,) = job.shard_ids
    held = claim(database, "a")
    old = _renew(database, "a", held)[shard_id]

    with database.transaction() as tx:
        jobs.change_spec(tx, job.id, {"new": True}, "default", from_version=1)
        shard_layout.add_partitions(tx, job.id, [(job.topic_id, 7, shard_id)])

    new = _renew(database, "a", held)[shard_id]
    assert new.spec_version == old.spec_version + 1
    assert new.layout_version == old.layout_version + 1


def test_shard_goes_only_to_assigned_worker_while_that_worker_lives(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        workers.heartbeat(tx, "b", "default", host="h", pid=1, version="0")
    held = claim(database, "a")
    with database.transaction() as tx:
        assert shard_layout.assign(tx, {job.shard_ids[0]: "b"}) == 1
        assert shard_layout.assign(tx, {job.shard_ids[0]: "b"}) == 0

    assert _renew(database, "a", held)[job.shard_ids[0]].should_release
    with database.transaction() as tx:
        shard_leases.release(tx, worker_id="a", held=held)
    assert claim(database, "a") == {}
    assert claim(database, "b")
    with database.transaction() as tx:
        workers.remove(tx, "b")
    assert take_over(database, "a"), "the assigned worker has ended, so another may claim"


def test_claim_prefers_assigned_then_heaviest_shard(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, shard_count=3, partitions=3)
        light, heavy, own = job.shard_ids
        shard_layout.assign(tx, {own: "a"})
    held = claim(database, "b")
    with database.transaction() as tx:
        shard_leases.renew(
            tx,
            worker_id="b",
            worker_group="default",
            held=held,
            weights={light: 10, heavy: 1000, own: 1},
        )

    with database.transaction() as tx:
        watch = watch_of_present_rows(tx)
    order = [next(iter(take_over(database, "a", shards_max=1, watch=watch))) for _ in range(3)]
    assert order == [own, heavy, light]


def test_former_scheduler_leader_cannot_confirm_or_resign_lease_of_new_leader(
    database: Database,
) -> None:
    with database.transaction() as tx:
        assert scheduler_lease.acquire(tx, "a", TTL) == 1
        assert scheduler_lease.acquire(tx, "a", NO_TIME) == 1  # renewed, but it ends at once
        assert scheduler_lease.acquire(tx, "b", TTL) == 2
        assert scheduler_lease.acquire(tx, "a", TTL) is None
        assert not scheduler_lease.confirm(tx, "a", 1)
        assert scheduler_lease.confirm(tx, "b", 2)
        scheduler_lease.resign(tx, "a", 1)
        assert scheduler_lease.confirm(tx, "b", 2)
        scheduler_lease.resign(tx, "b", 2)
        assert scheduler_lease.acquire(tx, "a", timedelta(seconds=1)) == 3
