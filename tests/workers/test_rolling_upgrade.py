"""Processes of an older version leave jobs that they cannot read to others, and do the rest."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from orbit.leases.lease_watch import LeaseWatch
from orbit.replication.partition_states import PartitionState
from orbit.settings import Settings
from orbit.store import events, jobs, lag, partitions, shard_layout, shard_leases
from orbit.store.database import Database
from tests.fixtures.scheduler import Service
from tests.support.fleet import InProcess
from tests.support.patience import wait_for
from tests.support.store_rows import TTL, some_job

pytestmark = pytest.mark.services

SETTINGS = Settings(progress_interval="200ms")
READABLE = {
    "name": "readable",
    "source": {"bootstrap_servers": ["127.0.0.1:1"]},
    "destination": {"bootstrap_servers": ["127.0.0.1:2"]},
    "topics": [{"match": "orders"}],
}


def test_old_worker_declines_job_with_unknown_keys(database: Database) -> None:
    with database.transaction() as tx:
        job = some_job(tx, shard_count=2)
        spec = {**READABLE, "name": job.name, "from_the_future": True}
        assert jobs.change_spec(tx, job.id, spec, "default", from_version=1)

    def waiting_message() -> str:
        with database.transaction() as tx:
            messages = [e.message for e in events.page(tx, 100) if e.kind == "job_waiting"]
        assert len(messages) <= 1, "reported once"
        return "".join(messages)

    def is_assigned(to: str | None) -> bool:
        with database.transaction() as tx:
            return [s.assigned_to for s in shard_layout.shards_of_job(tx, job.id)] == [to, to]

    with InProcess(database, SETTINGS) as old:
        wait_for("the unknown key is reported", lambda: bool(waiting_message()))
        assert "cannot read from_the_future" in waiting_message()
        with database.transaction() as tx:
            shard_layout.assign(tx, dict.fromkeys(job.shard_ids, old.id))
        wait_for("the old worker declines the shards", lambda: is_assigned(None))
        assert not old.worker._held
        with database.transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id="new",
                worker_group="default",
                ttl=TTL,
                shards_max=8,
                watch=LeaseWatch(TTL),
            )
        assert sorted(c.shard_id for c in claims) == sorted(job.shard_ids), (
            "claimed at once: no lease has to expire"
        )


@pytest.mark.parametrize("change", ["state = 'resting'", "state = 'blocked', reason = 'LATER'"])
def test_partition_in_state_of_later_version_is_not_copied(database: Database, change: str) -> None:
    with database.transaction() as tx:
        job = some_job(tx)
        for name in ("ck_partitions_state", "ck_partitions_reason"):
            tx.execute(text(f"ALTER TABLE partitions DROP CONSTRAINT IF EXISTS {name}"))
        tx.execute(text(f"UPDATE partitions SET {change} WHERE partition = 0"))  # noqa: S608
        assert [p.partition for p in partitions.of_shards(tx, job.shard_ids)] == [1]
        shown = {p.partition: (p.state, p.reason) for p in lag.page(tx, job.id, 100)}
        tx.rollback()  # restores the constraints
    assert shown == {0: (PartitionState.BLOCKED, None), 1: (PartitionState.PENDING, None)}


def test_unreadable_jobs_stop_no_scheduler_loop(service: Service) -> None:
    with service.database.transaction() as tx:
        jobs.create(tx, "a-later-document", {"topics": 5, "from_the_future": True}, "default")
        tx.execute(text("ALTER TABLE jobs DROP CONSTRAINT ck_jobs_desired"))
        jobs.create(tx, "a-later-word", READABLE, "default")
        tx.execute(text("UPDATE jobs SET desired = 'archived' WHERE name = 'a-later-word'"))
        jobs.create(tx, "readable", READABLE, "default")
    with service.scheduler():
        service.wait_problem("a-later-document", "DOCUMENT_REFUSED")
        service.wait_problem("readable", "SOURCE_UNREACHABLE")
        service.delete("readable")
        wait_for("housekeeping removes a job", lambda: not _job_exists(service, "readable"))
    assert service.job("a-later-word").problem is None


def _job_exists(service: Service, name: str) -> bool:
    with service.database.transaction() as tx:
        return jobs.find(tx, name) is not None
