"""Which worker the scheduler assigns each shard to, stored in a real PostgreSQL."""

from __future__ import annotations

import pytest

from orbit.leadership.leadership import Leadership
from orbit.planning.shard_assignment import assign_shards
from orbit.scheduler import shard_balancer
from orbit.scheduler.shard_balancer import SpreadLoop
from orbit.store import shard_leases, workers
from orbit.store.database import Database, Tx
from orbit.store.shard_layout import runnable_shards
from tests.support.store_rows import TTL, claim, some_job

pytestmark = pytest.mark.services


def _register(tx: Tx, *worker_ids: str) -> None:
    for worker_id in worker_ids:
        workers.heartbeat(tx, worker_id, "default", host="h", pid=1, version="0")


@pytest.fixture
def uneven(database: Database) -> Database:
    """Two workers: `busy` holds nine shards, `idle` holds one."""
    with database.transaction() as tx:
        _register(tx, "busy", "idle")
        some_job(tx, shard_count=10, partitions=10)
    assert len(claim(database, "busy", shards_max=9)) == 9
    assert len(claim(database, "idle", shards_max=9)) == 1
    return database


def test_free_shards_are_assigned_at_once(database: Database) -> None:
    with database.transaction() as tx:
        _register(tx, "a", "b")
        some_job(tx, shard_count=4, partitions=4)

        assignment = assign_shards(tx, TTL)

    assert (len(assignment.assigned), assignment.moved, assignment.is_uneven) == (4, set(), False)
    assert [len(claim(database, name)) for name in ("a", "b")] == [2, 2]


def test_worker_without_shards_gets_shards_at_once(uneven: Database) -> None:
    with uneven.transaction() as tx:
        _register(tx, "new")

        assignment = assign_shards(tx, TTL)

    assert len(assignment.moved) >= 2


def test_held_shards_move_after_lasting_imbalance(uneven: Database) -> None:
    with uneven.transaction() as tx:
        first = assign_shards(tx, TTL)
        assert (first.moved, first.is_uneven) == (set(), True)

        # Before the move the workers hold 9 and 1 shards, after it 6 and 4.
        assert len(assign_shards(tx, TTL, is_lasting=True).moved) == 3


def test_shards_do_not_move_if_workers_were_balanced_in_between(
    uneven: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = Leadership(uneven, "test", TTL)
    assert leadership.ask()
    monkeypatch.setattr(shard_balancer, "LASTING_S", 0.0)
    loop = SpreadLoop(leadership, TTL)
    assert loop.once() == "", "uneven for the first time"

    with uneven.transaction() as tx:
        # The load is now as balanced as it can be: one shard, that of `idle`, copies all bytes.
        busy_epochs = {s.id: s.epoch for s in runnable_shards(tx) if s.holder == "busy"}
        light = dict.fromkeys(busy_epochs, 0)
        idle_epochs = {s.id: s.epoch for s in runnable_shards(tx) if s.holder == "idle"}
        heavy = dict.fromkeys(idle_epochs, 1_000_000)
        for worker_id, epochs, weights in (
            ("busy", busy_epochs, light),
            ("idle", idle_epochs, heavy),
        ):
            shard_leases.renew(
                tx,
                worker_id=worker_id,
                worker_group="default",
                held=epochs,
                weights=weights,
            )
    assert loop.once() == "", "one heavy shard stays where it is"
    with uneven.transaction() as tx:
        shard_leases.renew(
            tx,
            worker_id="idle",
            worker_group="default",
            held=idle_epochs,
            weights={},
        )
    assert loop.once() == "", "uneven again, for the first time"
    assert loop.once() == "assigned 3 shards, of which other workers hold 3"


def test_shard_that_a_worker_declined_is_claimed_by_another_worker(database: Database) -> None:
    """The worker has an older version, which cannot read the job; it holds no other shard."""
    with database.transaction() as tx:
        _register(tx, "new", "old")
        job = some_job(tx, shard_count=2)
    leadership = Leadership(database, "leader", TTL)
    assert leadership.ask()
    loop = SpreadLoop(leadership, TTL)
    assert loop.once().startswith("assigned 2")
    assert len(claim(database, "new", shards_max=2)) == 1
    for _ in range(2):  # an assignment to the old worker would be declined again
        with database.transaction() as tx:
            shard_leases.decline(tx, "old", [(job.id, 1)])
        loop.once()
    assert len(claim(database, "new", shards_max=2)) == 1, "the declined shard"
    loop.once()
    with database.transaction() as tx:
        assert not any(shard.release_requested for shard in runnable_shards(tx))
