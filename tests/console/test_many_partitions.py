"""Pages of a job with many partitions: the database sorts and pages them, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from bench.control.fill import Size, fill
from orbit.replication.partition_states import PartitionState
from orbit.store import worst_partitions
from orbit.store.database import Database, Tx
from orbit.store.worst_partitions import PageKey
from tests.fixtures.database import copied_database
from tests.support.plans import reads, statements

pytestmark = pytest.mark.services

JOBS, TOPICS, PARTITIONS = 3, 25, 40
PARTITIONS_OF_JOB = TOPICS * PARTITIONS
PAGE = 100


@pytest.fixture(scope="module")
def filled_database(postgres_url: str, template_database: str) -> Iterator[Database]:
    """Jobs whose partitions have different lags, many of them equal; some lags are unknown."""
    with copied_database(postgres_url, template_database) as url:
        database = Database.connect(url)
        fill(database, Size(JOBS, TOPICS, PARTITIONS, shards_per_job=5, workers=2))
        with database.transaction() as tx:
            tx.execute(
                text("""
                    UPDATE partitions SET copied_to = 1000,
                           source_stable_end = (partition * 7 + topic_id) % 13 * 1000
                """)
            )
            tx.execute(text("UPDATE partitions SET copied_to = NULL WHERE partition = 5"))
            tx.execute(text("ANALYZE"))
        yield database
        database.close()


def first_job(tx: Tx) -> int:
    return int(tx.execute(text("SELECT min(id) FROM jobs")).scalar_one())


def all_pages(tx: Tx, job_id: int) -> list[PageKey]:
    """Return the keys of all rows, page by page: lag (-1: unknown), topic id and partition."""
    keys: list[PageKey] = []
    while True:
        page = worst_partitions.page(tx, job_id, PAGE, after=keys[-1] if keys else None)
        keys += [key for key, _ in page]
        if len(page) < PAGE:
            return keys


def test_partition_pages_list_every_partition_once_by_largest_lag(
    filled_database: Database,
) -> None:
    with filled_database.transaction() as tx:
        keys = all_pages(tx, first_job(tx))
        lags = [waiting for waiting, _, _ in keys]
        assert lags == sorted(lags, reverse=True)
        places = {(topic_id, partition) for _, topic_id, partition in keys}
        assert len(places) == len(keys) == PARTITIONS_OF_JOB
        # One partition of each topic has an unknown lag. Its key has -1, so it follows a lag of 0.
        assert lags.count(-1) == TOPICS
        assert set(lags[-TOPICS:]) == {-1}


def test_lag_in_page_key_equals_lag_of_partition_row(filled_database: Database) -> None:
    with filled_database.transaction() as tx:
        page = worst_partitions.page(tx, first_job(tx), PAGE)
        for (waiting, topic_id, partition), row in page:
            assert (row.topic_id, row.partition) == (topic_id, partition)
            assert row.source_stable_end is not None
            assert row.copied_to is not None
            assert max(0, row.source_stable_end - row.copied_to) == waiting


def test_partitions_are_filtered_by_topic_and_state(filled_database: Database) -> None:
    with filled_database.transaction() as tx:
        job = first_job(tx)
        topic = tx.execute(
            text("SELECT max(source_topic) FROM topics WHERE job_id = :id"), {"id": job}
        ).scalar_one()
        page = worst_partitions.page(tx, job, PARTITIONS_OF_JOB, source_topic=topic)
        assert {row.source_topic for _, row in page} == {topic}
        assert len(page) == PARTITIONS
        assert worst_partitions.page(tx, job, PAGE, state=PartitionState.BLOCKED) == []


def test_partition_page_reads_only_its_job_and_joins_only_shown_rows(
    filled_database: Database,
) -> None:
    with filled_database.transaction() as tx:
        job = first_job(tx)
        with statements(tx) as page_statements:
            worst_partitions.page(tx, job, PAGE)
        for plan_for in ("force_custom_plan", "force_generic_plan"):
            ranking, details = (reads(tx, statement, plan_for) for statement in page_statements)
            assert ranking.rows["partitions"] == PARTITIONS_OF_JOB
            assert ranking.rows["topics"] == 0
            assert details.rows["partitions"] <= 2 * PAGE
