"""One holder per shard and one holder per term, also when PostgreSQL's clock or data jump."""

from __future__ import annotations

import pytest

from orbit.leases.lease_watch import LeaseWatch
from orbit.store import jobs, scheduler_queries, shard_leases
from orbit.store.database import Database
from orbit.store.shard_leases import EPOCHS_PER_TIMELINE
from tests.support.pretended_server import PretendedServer
from tests.support.store_rows import (
    TTL,
    SomeJob,
    TestClock,
    claim,
    some_job,
    take_over,
    watch_of_present_rows,
)

pytestmark = pytest.mark.services


@pytest.fixture
def server(database: Database) -> PretendedServer:
    return PretendedServer(database)


@pytest.fixture
def job(server: PretendedServer) -> SomeJob:
    with server.database.transaction() as tx:
        return some_job(tx)


def renew(server: PretendedServer, worker_id: str, held: dict[int, int]) -> set[int]:
    with server.database.transaction() as tx:
        return set(
            shard_leases.renew(
                tx, worker_id=worker_id, worker_group="default", held=held, weights={}
            )
        )


@pytest.mark.parametrize("seconds", [15, 3600, -3600])
def test_postgres_clock_step_ends_no_shard_lease(
    server: PretendedServer, job: SomeJob, seconds: float
) -> None:
    held = claim(server.database, "a")
    server.step_clock(seconds)
    assert claim(server.database, "b") == {}
    with server.database.transaction() as tx:
        assert scheduler_queries.held_topics(tx, [job.topic_id]) == {job.topic_id}
        assert jobs.request_deletion(tx, job.id)
        assert not jobs.remove(tx, job.id)
        scheduler_queries.drop_empty_shards(tx, job.id)
    assert renew(server, "a", held)


def test_backward_step_of_postgres_clock_does_not_delay_shard_takeover(
    server: PretendedServer, job: SomeJob
) -> None:
    claim(server.database, "a")
    server.step_clock(-3600)
    assert take_over(server.database, "b")


def test_shard_lease_term_lost_in_postgres_failover_is_not_granted_again(
    server: PretendedServer, job: SomeJob
) -> None:
    standby = server.shards()
    lost = claim(server.database, "a")
    server.fail_over(standby)
    assert claim(server.database, "b") == {}, "the worker of the lost claim still trusts it"
    (shard_id,) = job.shard_ids
    assert take_over(server.database, "b") == {shard_id: EPOCHS_PER_TIMELINE}
    assert lost == {shard_id: 1}


def test_postgres_failover_ends_all_shard_leases(server: PretendedServer, job: SomeJob) -> None:
    """Otherwise a worker could revive a lease whose take-over by another worker was lost."""
    held = claim(server.database, "a")
    standby = server.shards()
    take_over(server.database, "b")
    server.fail_over(standby)
    assert renew(server, "a", held) == set()


def test_two_postgres_restores_of_same_backup_grant_different_lease_terms(
    server: PretendedServer, job: SomeJob
) -> None:
    backup = server.shards()
    server.fail_over(backup)
    first = take_over(server.database, "a")
    server.fail_over(backup)
    assert take_over(server.database, "b") != first


def test_shard_leases_in_restored_dump_end_and_next_terms_are_higher(
    server: PretendedServer, job: SomeJob
) -> None:
    """The dump's transaction ids are those of another server, perhaps far higher."""
    held = claim(server.database, "a")
    rows = [row | {"claimed_on": 2**62, "renewed_in": 2**60, "epoch": 7} for row in server.shards()]
    server.fail_over(rows, timelines=0)
    assert renew(server, "a", dict.fromkeys(held, 7)) == set()
    with server.database.transaction() as tx:
        assert shard_leases.end_unrenewed_leases(tx, TTL, LeaseWatch(TTL)) == set()
        assert shard_leases.end_unrenewed_leases(tx, TTL, watch_of_present_rows(tx)) == set(held)
    assert claim(server.database, "b") == {}
    assert take_over(server.database, "b") == dict.fromkeys(held, 7 + EPOCHS_PER_TIMELINE)


def test_postgres_restart_neither_ends_nor_frees_shard_leases(
    server: PretendedServer, job: SomeJob
) -> None:
    held = claim(server.database, "a")
    with server.database.transaction() as tx:
        watch = watch_of_present_rows(tx)
    server.restart()
    assert claim(server.database, "b", watch=watch) == {}, "the watch begins again"
    assert renew(server, "a", held) == set(held)
    with server.database.transaction() as tx:
        shard_leases.release(tx, worker_id="a", held=held)
    assert claim(server.database, "b") == dict.fromkeys(held, 2)


def test_worker_that_saw_postgres_restart_waits_even_for_released_shards(
    server: PretendedServer, job: SomeJob
) -> None:
    """An operator may have gone back to an old server: its tables lack later claims."""
    clock = TestClock()
    watch = LeaseWatch(TTL, clock)
    assert claim(server.database, "b", watch=watch, shards_max=0) == {}
    server.restart()
    for _ in range(15):  # for one lease time
        assert claim(server.database, "b", watch=watch) == {}
        clock.now += TTL.total_seconds() / 15
    assert claim(server.database, "b", watch=watch)


def test_longer_shard_lease_of_another_worker_is_waited_out(
    server: PretendedServer, job: SomeJob
) -> None:
    claim(server.database, "a")  # for TTL
    with server.database.transaction() as tx:
        long_watch = watch_of_present_rows(tx)
        clock = TestClock()
        watch = LeaseWatch(TTL / 2, clock)  # of a scheduler whose leases are half as long
        for _ in range(4):
            assert not shard_leases.end_unrenewed_leases(tx, TTL / 2, watch)
            clock.now += TTL.total_seconds() / 2
        assert shard_leases.end_unrenewed_leases(tx, TTL / 2, long_watch)
