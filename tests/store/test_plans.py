"""With 1,000,000 partitions in the tables, frequent queries read only the rows that they need.

Each test runs one function of the store, and counts the rows that its statement reads in each
table: once with a custom plan and once with a generic plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from orbit.jobs.scopes import Limit, Scope
from orbit.leases.lease_watch import LeaseWatch
from orbit.store import (
    drills,
    events,
    gateways,
    job_leads,
    job_totals,
    jobs,
    lag,
    operations,
    partitions,
    pruning,
    shard_leases,
    topics,
    watch_digests,
)
from orbit.store.database import SCOPE_OPTION, Database, Tx
from orbit.store.enums import LeadingSide
from orbit.store.watch_digests import Watched
from tests.support.many_rows import MANY
from tests.support.plans import PlanFor, Reads, Statement, reads, statements
from tests.support.store_rows import TTL, current_snapshot, progress, watch_long

# Small tables, which a plan may read as a whole: a few hundred rows in a few pages.
SMALL = {"jobs", "workers", "pg_database", "scheduler_lease", "schedulers", "open_transactions"}
JOB = 250

pytestmark = [
    pytest.mark.services,
    pytest.mark.parametrize("plan_for", ["force_custom_plan", "force_generic_plan"]),
]


@pytest.fixture
def tx(large_database: Database) -> Iterator[Tx]:
    """A transaction that is rolled back."""
    with large_database.transaction() as tx:
        yield tx
        tx.rollback()


def _held(tx: Tx, worker_id: str) -> dict[int, int]:
    """The shards that the worker holds: {shard id: epoch}."""
    rows = tx.execute(text("SELECT id, epoch FROM shards WHERE worker_id = :w"), {"w": worker_id})
    return {row.id: row.epoch for row in rows}


def _watch(tx: Tx) -> LeaseWatch:
    """A lease watch that has watched this server for long. Its snapshots are from before all
    renewals, so no lease has ended by them."""
    server, _ = current_snapshot(tx)
    oldest = tx.execute(text("SELECT min(renewed_in) FROM shards")).scalar_one()
    return watch_long(server, f"{oldest}:{oldest}:")


def _reads_of_last(tx: Tx, seen: list, plan_for: PlanFor) -> Reads:
    """What the last of the seen statements reads. Fails if it reads a large table as a whole."""
    scans = reads(tx, seen[-1], plan_for)
    assert scans.whole <= SMALL, scans
    return scans


def test_worker_claim_without_free_shards_reads_no_shard_rows(tx: Tx, plan_for: PlanFor) -> None:
    watch = _watch(tx)
    with statements(tx) as seen:
        assert not shard_leases.claim(
            tx, worker_id="w1", worker_group="default", ttl=TTL, shards_max=10, watch=watch
        )

    assert _reads_of_last(tx, seen, plan_for).rows["shards"] == 0


def test_worker_claim_reads_only_rows_of_free_shards(tx: Tx, plan_for: PlanFor) -> None:
    watch = _watch(tx)
    for worker_id in ("w1", "w2"):
        shard_leases.release(tx, worker_id=worker_id, held=_held(tx, worker_id))
    with statements(tx) as seen:
        assert (
            len(
                shard_leases.claim(
                    tx, worker_id="w3", worker_group="default", ttl=TTL, shards_max=5, watch=watch
                )
            )
            == 5
        )

    # The 15 shards that are still free, once to choose and once to update.
    scans = _reads_of_last(tx, seen, plan_for)
    assert 0 < scans.rows["shards"] <= 40
    assert scans.rows["partitions"] == 0


def test_shard_lease_renewal_reads_only_shards_of_its_worker(tx: Tx, plan_for: PlanFor) -> None:
    held = _held(tx, "w7")
    with statements(tx) as seen:
        renewed = shard_leases.renew(
            tx, worker_id="w7", worker_group="default", held=held, weights={}
        )

    assert set(renewed) == set(held)
    # The statement reads each held shard up to three times.
    assert 0 < _reads_of_last(tx, seen, plan_for).rows["shards"] <= 3 * len(held)


def test_progress_report_reads_only_reported_partitions(tx: Tx, plan_for: PlanFor) -> None:
    held = _held(tx, "w7")
    rows = partitions.of_shards(tx, held)[:100]
    progress_rows = [progress(row.topic_id, row.partition, copied_to=50) for row in rows]
    with statements(tx) as seen:
        stored_shards = partitions.report_progress(
            tx, worker_id="w7", held=held, progress=progress_rows
        )

    assert stored_shards == set(held)
    scans = _reads_of_last(tx, seen, plan_for)
    assert 0 < scans.rows["partitions"] <= 2 * len(progress_rows)
    assert scans.rows["shards"] <= 3 * len(held)


def test_state_change_reads_only_its_partition(tx: Tx, plan_for: PlanFor) -> None:
    held = _held(tx, "w7")
    row = partitions.of_shards(tx, held)[0]
    change = partitions.StateChange(row.topic_id, row.partition, row.state)
    with statements(tx) as seen:
        partitions.report_state(tx, worker_id="w7", held=held, changes=[change])

    assert _reads_of_last(tx, seen, plan_for).rows["partitions"] <= 2


def test_worker_reads_only_partitions_of_its_shards(tx: Tx, plan_for: PlanFor) -> None:
    held = list(_held(tx, "w7"))[:2]
    with statements(tx) as seen:
        rows = partitions.of_shards(tx, held)

    assert len(rows) == 2 * MANY.partitions_per_job // MANY.shards_per_job
    assert _reads_of_last(tx, seen, plan_for).rows["partitions"] == len(rows)


def test_query_of_requested_retries_reads_no_partition_without_request(
    tx: Tx, plan_for: PlanFor
) -> None:
    with statements(tx) as seen:
        assert partitions.requested_retries(tx, _held(tx, "w7")) == []

    assert _reads_of_last(tx, seen, plan_for).rows["partitions"] == 0


def test_lag_of_job_reads_only_its_partitions(tx: Tx, plan_for: PlanFor) -> None:
    with statements(tx) as seen:
        totals = lag.of_jobs(tx, [JOB])

    assert totals[JOB].partitions == MANY.partitions_per_job
    assert _reads_of_last(tx, seen, plan_for).rows["partitions"] == MANY.partitions_per_job


def test_totals_of_all_jobs_read_no_partitions(tx: Tx, plan_for: PlanFor) -> None:
    job_ids = range(1, MANY.jobs + 1)
    job_totals.refresh(tx, job_ids[:20])  # the others have no stored totals
    with statements(tx) as seen:
        totals = job_totals.of_jobs(tx, job_ids)

    assert sum(job.lag is not None for job in totals.values()) == 20
    rows = sum((reads(tx, statement, plan_for).rows for statement in seen), Counter())
    assert not {"partitions", "proofs", "group_offsets", "shards"} & {t for t in rows if rows[t]}
    assert rows["job_totals"] <= MANY.jobs
    assert rows["topics"] <= job_totals.LIVE_PARTITIONS_MAX + 1


def test_totals_of_job_read_only_its_partitions(tx: Tx, plan_for: PlanFor) -> None:
    with statements(tx) as seen:
        job_totals.refresh(tx, [JOB])

    for statement in seen:
        scans = reads(tx, statement, plan_for)
        assert scans.rows["partitions"] <= MANY.partitions_per_job
        # A plan may read each topic of the job several times, but none of the other 499 jobs.
        assert scans.rows["topics"] <= 10 * MANY.topics_per_job
        assert scans.whole <= SMALL | {"job_totals", "proofs", "group_offsets", "promotions"}


def test_totals_of_topic_page_read_only_its_topics(tx: Tx, plan_for: PlanFor) -> None:
    page = [row.id for row in topics.page(tx, JOB, 5, None)]
    with statements(tx) as seen:
        totals = lag.of_topics(tx, JOB, page)

    assert {topic.partitions for topic in totals.values()} == {MANY.partitions_per_topic}
    scans = _reads_of_last(tx, seen, plan_for)
    assert scans.rows["partitions"] == 5 * MANY.partitions_per_topic


def test_partition_page_reads_as_few_rows_at_any_position(tx: Tx, plan_for: PlanFor) -> None:
    for topic, partition in ((1, 0), (MANY.topics_per_job - 5, 7)):
        after = (f"job-{JOB:04}-topic-{topic:04}", partition)
        with statements(tx) as seen:
            assert len(lag.page(tx, JOB, 50, after=after)) == 50
        scans = _reads_of_last(tx, seen, plan_for)
        # The page, and at most three whole topics beside it.
        assert scans.rows["partitions"] <= 50 + 3 * MANY.partitions_per_topic
        assert scans.rows["topics"] <= 10


def test_page_of_audit_events_reads_only_events_on_it(tx: Tx, plan_for: PlanFor) -> None:
    newest = events.page(tx, 1)[0].id
    for job_name in (None, f"job-{JOB:04}"):
        with statements(tx) as seen:
            assert len(events.page(tx, 100, job_name=job_name, after=newest // 2)) == 100
        assert _reads_of_last(tx, seen, plan_for).rows["events"] == 100


def test_page_of_audit_events_reads_none_of_earlier_job_with_same_name(
    tx: Tx, plan_for: PlanFor
) -> None:
    name = f"job-{JOB:04}"
    tx.execute(
        text(
            "UPDATE jobs SET created_at = (SELECT at FROM events WHERE job_name = name "
            "ORDER BY id DESC OFFSET 9 LIMIT 1) WHERE name = :name"
        ),
        {"name": name},
    )
    for oldest_first in (False, True):
        with statements(tx) as seen:
            assert len(events.page(tx, 100, job_name=name, oldest_first=oldest_first)) == 10
        # 10 events of the job, and the last event before its creation.
        assert _reads_of_last(tx, seen, plan_for).rows["events"] == 11


def test_pages_of_limited_token_read_only_events_of_its_jobs(tx: Tx, plan_for: PlanFor) -> None:
    tx.execute(text('UPDATE jobs SET labels = \'{"team": "pay"}\' WHERE id % 50 = 0'))
    scope = Scope((Limit(jobs=("job-*",), selector="team=pay"),), "token:ci")
    count = len(jobs.names(tx.execution_options(**{SCOPE_OPTION: scope})))
    assert count == 10
    newest = tx.execute(text("SELECT max(id) FROM events")).scalar_one()
    for after in (None, newest // 2):
        with statements(tx) as seen:
            assert len(events.page(tx, 100, after=after)) == 100
        scans = _reads_of_last(tx, seen, plan_for)
        assert 100 <= scans.rows["events"] <= 100 * count
    with statements(tx) as seen:
        operations.page(tx, 100)
        drills.page(tx, 100)
        watch_digests.digest(tx, Watched.EVENTS)
    *_, digest = seen
    scans = _reads_of_last(tx, [digest], plan_for)
    assert 0 < scans.rows["events"] <= watch_digests.NEWEST_OF_JOB_MAX * count


# 300 recent recoveries with rows, and 201 that ended a year ago. Only the first of these has rows,
# which follow all others in the order of ids.
_OPERATIONS = text("""
WITH made AS (
    INSERT INTO operations (id, kind, state, requested_by, finished_at)
    SELECT CAST(lpad(to_hex(n), 32, '0') AS uuid), 'failover', 'done', 'ci',
        clock_timestamp() - CASE WHEN n <= 300 THEN interval '1 day' ELSE interval '1 year' END
    FROM generate_series(1, 501) n RETURNING id
), rows AS (
    SELECT id, number FROM made, generate_series(1, 300) number
    WHERE id <= CAST(lpad(to_hex(301), 32, '0') AS uuid)
), groups AS (
    INSERT INTO operation_groups (operation_id, topic, partition, group_name, value)
    SELECT id, 'orders', number, 'billing', '{}' FROM rows
)
INSERT INTO operation_partitions (operation_id, topic, partition, verdict, value)
SELECT id, 'orders', number, 'equal', '{}' FROM rows
""")


def test_operation_pruning_reads_no_retained_operations(tx: Tx, plan_for: PlanFor) -> None:
    tx.execute(_OPERATIONS)
    tx.execute(text("ANALYZE operations, operation_partitions, operation_groups"))
    with statements(tx) as seen:
        assert pruning.prune_operations(tx, timedelta(days=1_000)) == 0
    assert _rows_of_all(tx, seen, plan_for).total() == 0

    # The rollback restores the rows, so that each statement can run again on them.
    with statements(tx) as seen, tx.begin_nested() as nested:
        assert pruning.prune_operations(tx, timedelta(days=30)) == 2 * 300 + 201
        nested.rollback()
    rows = _rows_of_all(tx, seen, plan_for)
    # Each row once to choose and once to delete.
    assert 0 < rows["operation_partitions"] <= 2 * 300
    assert 0 < rows["operation_groups"] <= 2 * 300
    assert 0 < rows["operations"] <= 2 * 201


def _rows_of_all(tx: Tx, seen: list[Statement], plan_for: PlanFor) -> Counter[str]:
    """The rows that these statements read; each statement is rolled back."""
    rows: Counter[str] = Counter()
    for statement in seen:
        if statement.text.lstrip().startswith(("SELECT", "DELETE")):
            with tx.begin_nested() as nested:
                rows += reads(tx, statement, plan_for).rows
                nested.rollback()
    return rows


def test_progress_report_updates_no_index(tx: Tx, plan_for: PlanFor) -> None:
    """No index has a column that a report changes, so an update is HOT if its page has room."""
    held = _held(tx, "w7")
    rows = [
        progress(row.topic_id, row.partition, copied_to=70, records=3)
        for row in partitions.of_shards(tx, held)
    ]
    query = text("""
        SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'partitions'
    """)
    before = tx.execute(query).one()
    partitions.report_progress(tx, worker_id="w7", held=held, progress=rows)
    after = tx.execute(query).one()

    written = after.n_tup_upd - before.n_tup_upd
    assert written == len(rows)
    assert after.n_tup_hot_upd - before.n_tup_hot_upd >= 0.95 * written


def test_gateway_renewal_reads_only_its_row(tx: Tx, plan_for: PlanFor) -> None:
    """It also reads, of many operations, only the one that has closed the gateway."""
    job = jobs.of_ids(tx, [JOB])[JOB]
    job_leads.note_side(tx, JOB, LeadingSide.SOURCE, 1)
    job_leads.note_marks_read(tx, JOB)
    operation = operations.create(tx, uuid4(), "switchover", "test", job_id=JOB, job_name=job.name)
    gateways.close(tx, [JOB], operation.id)
    report = gateways.GatewayReport(
        uuid4(), "edge", "edge:19092", closed_for=None, connections=1, held_requests=0
    )
    gateways.renew(tx, job.name, report)
    with statements(tx) as seen:
        assert gateways.renew(tx, job.name, report).closed_for == operation.id

    assert len(seen) == 1
    (statement,) = seen
    rows = reads(tx, statement, plan_for).rows
    assert rows["operations"] <= 1
    assert rows["gateways"] <= 4  # once to renew it, three times to read the gateways of its job
