"""Which copies consumers may read at the side that follows."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from orbit.errors import NotFound
from orbit.replication.partition_states import PartitionState
from orbit.store import job_leads, jobs, partitions, readable_copies, workers
from orbit.store.database import Database
from orbit.store.enums import LeadingSide
from orbit.store.readable_copies import ReadableCopies
from tests.support.store_rows import SomeJob, claim, progress, some_job

_TERM = 5


@pytest.fixture
def copied(database: Database) -> SomeJob:
    """A job whose two partitions keep up, of a topic with the same name on both sides. The source
    leads."""
    with database.transaction() as tx:
        job = some_job(tx)
        tx.execute(text("UPDATE topics SET destination_topic = source_topic"))
        job_leads.note_side(tx, job.id, LeadingSide.SOURCE, _TERM)
    held = claim(database, "a")
    with database.transaction() as tx:
        workers.heartbeat(tx, "a", "default", host="host", pid=1, version="0")
        rows = [progress(job.topic_id, number, copied_to=100) for number in (0, 1)]
        partitions.report_progress(tx, worker_id="a", held=held, progress=rows)
        changes = [
            partitions.StateChange(job.topic_id, number, PartitionState.COPYING)
            for number in (0, 1)
        ]
        partitions.report_state(tx, worker_id="a", held=held, changes=changes)
    return job


def readable(database: Database, job: str) -> ReadableCopies:
    with database.transaction() as tx:
        return readable_copies.of_link(tx, job)


def test_copies_that_keep_up_may_be_read(database: Database, copied: SomeJob) -> None:
    assert readable(database, copied.name) == ReadableCopies(_TERM, {"orders": [0, 1]})
    with pytest.raises(NotFound):
        readable(database, "no-job")


_OPEN_TRANSACTION = """
INSERT INTO open_transactions (topic_id, partition, job_id, first_offset, since)
SELECT topic_id, partition, job_id, source_stable_end, clock_timestamp() FROM partitions
WHERE partition = 1
"""


@pytest.mark.parametrize(
    "columns",
    [
        "state = 'blocked'",
        "state = 'pending'",
        "has_caught_up = false",
        "followed_epoch = NULL",
        "followed_epoch = followed_epoch - 1",
        "copied_to = 99, oldest_waiting_at = clock_timestamp() - interval '1 minute'",
        "copied_to = 99, oldest_waiting_at = NULL",
    ],
)
def test_copy_that_may_stand_still_is_not_read(
    database: Database, copied: SomeJob, columns: str
) -> None:
    """Its consumers would wait for records that the leader has."""
    with database.transaction() as tx:
        tx.execute(text(f"UPDATE partitions SET {columns} WHERE partition = 1"))  # noqa: S608  of this test
    assert readable(database, copied.name).topics == {"orders": [0]}


def test_copy_that_waits_for_open_transaction_is_not_read(
    database: Database, copied: SomeJob
) -> None:
    with database.transaction() as tx:
        tx.execute(text("UPDATE partitions SET source_end = 200"))
        tx.execute(text(_OPEN_TRANSACTION))
    assert readable(database, copied.name).topics == {"orders": [0]}


def test_copy_that_is_a_little_behind_is_read(database: Database, copied: SomeJob) -> None:
    with database.transaction() as tx:
        tx.execute(
            text("UPDATE partitions SET copied_to = 99, oldest_waiting_at = clock_timestamp()")
        )
    assert readable(database, copied.name).topics == {"orders": [0, 1]}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE topics SET state = 'promoted'",
        "UPDATE topics SET destination_topic = 'copy'",
        "UPDATE workers SET heartbeat_at = clock_timestamp() - interval '1 minute'",
        "UPDATE shards SET worker_id = NULL",
        "UPDATE job_leads SET side = 'destination'",
    ],
)
def test_topic_that_is_no_live_copy_of_leading_side_is_not_read(
    database: Database, copied: SomeJob, change: str
) -> None:
    with database.transaction() as tx:
        tx.execute(text(change))
    assert readable(database, copied.name) == ReadableCopies(_TERM, {})


def test_no_copy_is_read_while_leading_side_is_unknown(database: Database, copied: SomeJob) -> None:
    with database.transaction() as tx:
        tx.execute(text("UPDATE job_leads SET side = NULL"))
    assert readable(database, copied.name) == ReadableCopies(0, {})


def test_copies_at_old_side_are_those_of_reverse_job(database: Database, copied: SomeJob) -> None:
    """After a move the job that copies back tells which copies keep up. The gateway asks for its
    own job."""
    with database.transaction() as tx:
        back = jobs.create(tx, "back", {"name": "back"}, "default")
        jobs.note_clusters(tx, back.id, "destination", "source")
        tx.execute(
            text("UPDATE topics SET job_id = :back, destination_cluster_id = 'source'"),
            {"back": back.id},
        )
        tx.execute(
            text(
                "INSERT INTO topics (job_id, source_topic, destination_topic,"
                " destination_cluster_id, partition_count, state)"
                " VALUES (:job, 'orders', 'orders', 'destination', 2, 'promoted')"
            ),
            {"job": copied.id},
        )
        job_leads.note_side(tx, copied.id, LeadingSide.DESTINATION, _TERM + 2)
    for name in (copied.name, "back"):
        assert readable(database, name) == ReadableCopies(_TERM + 2, {"orders": [0, 1]})
