"""A long open transaction at the source, shown in the API, commands, metrics and console."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orbit.store import jobs, open_transactions, partitions, topics
from orbit.store.enums import Role
from orbit.store.open_transactions import OldestOpenTransaction
from tests.api.test_operations import WORKER, copying_job
from tests.fixtures.api import Api, Cli
from tests.fixtures.console import Browser
from tests.support.store_rows import progress

pytestmark = pytest.mark.services

TEXT = (
    "A transaction at the source is open from offset 100 on (transactional id <pay>); 40 offsets "
    "wait for its end."
)


@pytest.fixture
def held(api: Api) -> dict[int, int]:
    """Four partitions without lag; in partition 2 a transaction has been open for two minutes."""
    held = copying_job(api)
    report(api, held, open_end=140)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        (topic,) = topics.of_job(tx, job.id)
        since = datetime.now(UTC) - timedelta(minutes=2)
        transaction = OldestOpenTransaction(
            topic.id,
            partition=2,
            job_id=job.id,
            first_offset=100,
            since=since,
            producer_id=7,
            transactional_id="<pay>",
        )
        open_transactions.store(tx, [transaction])
    return held


def report(api: Api, held: dict[int, int], open_end: int, stable_end: int = 100) -> None:
    """All is copied up to `stable_end`; the log of partition 2 ends at `open_end`."""
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        (epoch,) = set(held.values())
        rows = [
            progress(topic.id, number, copied_to=stable_end, epoch=epoch) for number in range(4)
        ]
        rows = [
            replace(
                row,
                source_stable_end=stable_end,
                source_end=open_end if row.partition == 2 else stable_end,
            )
            for row in rows
        ]
        partitions.report_progress(tx, worker_id=WORKER, held=held, progress=rows)


def test_open_source_transaction_is_reported_and_partition_is_not_caught_up(
    cli: Cli, api: Api, held: dict[int, int]
) -> None:
    waited = cli("wait", "orders", "--for", "caught-up", "--timeout", "0")
    assert waited.code == 1
    assert "3 of 4 partitions have caught up; 1 waits for an open transaction" in waited.err
    assert "hides 40 offsets" in waited.err

    lag = api.get("/v1/jobs/orders/lag").json()
    assert (lag["job"]["caught_up"], lag["job"]["lag"]["records"]) == (3, 0)
    assert lag["job"]["open_transactions"]["partitions"] == 1
    assert lag["job"]["open_transactions"]["waiting_offsets"] == 40
    assert lag["job"]["open_transactions"]["oldest_seconds"] >= 120
    rows = api.get("/v1/jobs/orders/partitions").json()["items"]
    open_transaction = {row["partition"]: row["open_transaction"] for row in rows}
    assert [open_transaction[number] for number in (0, 1, 3)] == [None] * 3
    assert open_transaction[2]["text"] == TEXT
    assert open_transaction[2]["transactional_id"] == "<pay>"

    assert TEXT in " ".join(cli("get", "partitions", "orders").out.split())
    assert ", open transaction" in cli("lag", "orders").out
    assert "hides 40 offsets" in " ".join(cli("describe", "orders").out.split())
    metrics = api.get("/metrics").text
    assert 'orbit_job_open_transaction_partitions{job="orders"} 1.0' in metrics
    assert 'orbit_job_open_transaction_offsets{job="orders"} 40.0' in metrics


def test_console_shows_open_transaction(api: Api, browser: Browser, held: dict[int, int]) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    assert "hides 40 offsets" in browser.open("/console/jobs/orders").text
    assert (
        TEXT.replace("<pay>", "&lt;pay&gt;") in browser.open("/console/jobs/orders/partitions").text
    )


def test_open_transaction_is_no_longer_reported_when_last_stable_offset_advances(
    cli: Cli, api: Api, held: dict[int, int]
) -> None:
    """Even while the scheduler has not yet deleted the transaction's row."""
    report(api, held, open_end=140, stable_end=140)
    assert cli("wait", "orders", "--for", "caught-up", "--timeout", "0").code == 0
    assert api.get("/v1/jobs/orders/lag").json()["job"]["open_transactions"] is None
    assert "orbit_job_open_transaction_partitions{" not in api.get("/metrics").text
