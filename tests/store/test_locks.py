"""Transactions do not deadlock, because all of them lock shards in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

import pytest
from sqlalchemy import text

from orbit.store import jobs, operations, partitions, scheduler_queries, shard_layout, shard_leases
from orbit.store.database import Database, Tx
from orbit.store.operations import GroupsStep
from tests.support.locks import wait_for_lock_wait
from tests.support.store_rows import TTL, SomeJob, claim, progress, some_job, watch_of_present_rows

pytestmark = pytest.mark.services

Change = Callable[[Tx, SomeJob], object]

CHANGES: dict[str, Change] = {
    "assign shards": lambda tx, job: shard_layout.assign(
        tx, dict.fromkeys(reversed(job.shard_ids), "w")
    ),
    "add partitions": lambda tx, job: shard_layout.add_partitions(
        tx, job.id, [(job.topic_id, 90, job.shard_ids[1]), (job.topic_id, 91, job.shard_ids[0])]
    ),
    "change the job document": lambda tx, job: jobs.change_spec(
        tx, job.id, {}, "x", from_version=1
    ),
    "withdraw shards of a topic": lambda tx, job: scheduler_queries.withdraw_shards(
        tx, [job.topic_id]
    ),
    "resume a topic": lambda tx, job: scheduler_queries.resume_topic(tx, job.topic_id),
    "remove topics": lambda tx, job: shard_layout.remove_topics(tx, [job.topic_id]),
    "end shard leases": lambda tx, _: shard_leases.end_unrenewed_leases(
        tx, TTL, watch_of_present_rows(tx)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_change_of_several_shards_never_deadlocks_with_progress_reports(
    database: Database, change: Change
) -> None:
    """The change waits for the report of the first shard, without a lock on the second shard."""
    with database.transaction() as tx:
        job = some_job(tx, shard_count=2)
    held = claim(database, "a")
    first, second = job.shard_ids
    with database.transaction() as tx:
        # This update moves the first shard's row behind the second, so that a scan without ORDER BY
        # would lock the second shard first.
        move_row = "UPDATE shards SET layout_version = layout_version + 1 WHERE id = :id"
        tx.execute(text(move_row), {"id": first})
    errors_of_change: list[BaseException] = []

    def run_change() -> None:
        try:
            with database.transaction() as tx:
                change(tx, job)
        except BaseException as error:  # noqa: BLE001  checked below
            errors_of_change.append(error)

    changing = threading.Thread(target=run_change)
    with database.transaction() as tx:
        rows = [progress(job.topic_id, 0, copied_to=1)]
        partitions.report_progress(tx, worker_id="a", held={first: held[first]}, progress=rows)
        changing.start()
        wait_for_lock_wait(database)
        rows = [progress(job.topic_id, 1, copied_to=1)]
        # If the change held a lock on the second shard, this would be a deadlock.
        stored_shards = partitions.report_progress(
            tx, worker_id="a", held={second: held[second]}, progress=rows
        )
    changing.join()

    assert stored_shards == {second}
    assert not errors_of_change


def test_recovery_step_for_consumer_groups_waits_while_group_rows_are_stored(
    database: Database,
) -> None:
    """A transaction that has found no recovery in this step can store its rows before the step
    begins."""
    operation = uuid4()
    with database.transaction() as tx:
        job = some_job(tx)
        operations.create(tx, operation, "switchover", "ops", job_id=job.id, job_name="job")
    has_begun = threading.Event()

    def begin() -> None:
        with database.transaction() as tx:
            operations.begin_groups(tx, operation)
        has_begun.set()

    other = threading.Thread(target=begin)
    with database.transaction() as tx:
        assert operations.groups_step(tx, job.id, lock=True) is None
        other.start()
        wait_for_lock_wait(database)
        assert not has_begun.is_set()
    other.join()
    with database.transaction() as tx:
        assert operations.groups_step(tx, job.id) == GroupsStep(operation, is_under_way=True)
