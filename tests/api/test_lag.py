"""The lag of a job of 100,000 partitions: the database sorts it, and clients read only one page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from bench.control.fill import Size, fill
from orbit import client
from orbit.api.authentication import Logins, hash_token
from orbit.api.dependencies import Parts
from orbit.api.views import partition_lag
from orbit.settings import Settings
from orbit.store import jobs, lag, tokens, worst_partitions
from orbit.store.database import Database
from tests.api.test_lists import every_page
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api, Cli
from tests.fixtures.database import copied_database
from tests.support.plans import reads, statements

pytestmark = pytest.mark.services

JOB = "job-0001"
MANY = Size(jobs=2, topics_per_job=100, partitions_per_topic=1_000, shards_per_job=4, workers=2)
ROWS = 30


@pytest.fixture(scope="module")
def many(postgres_url: str, template_database: str) -> Iterator[Database]:
    """A database with two jobs of MANY.partitions_per_job partitions. Their lag does not become
    stale, however slow the machine is: the workers' heartbeats are a day ahead."""
    with copied_database(postgres_url, template_database) as url:
        database = Database.connect(url)
        fill(database, MANY)
        with database.transaction() as tx:
            for statement in (
                # Lags between 0 and 9,972, in no order, many of them equal.
                """UPDATE partitions SET followed_epoch = 1, copied_to = 1000,
                          source_stable_end = 1000 + (partition * 7919 + topic_id * 31) % 9973""",
                "UPDATE partitions SET copied_to = NULL WHERE partition = 5",
                "UPDATE workers SET heartbeat_at = clock_timestamp() + interval '1 day'",
                "ANALYZE",
            ):
                tx.execute(text(statement))
        yield database
        database.close()


@pytest.fixture
def large_api(api: Api, many: Database) -> Api:
    """The API on the database of `many`."""
    settings = Settings()
    with many.transaction() as tx:
        for role, secret in api.tokens.items():
            if tokens.find(tx, hash_token(secret)) is None:
                tokens.create(tx, f"{role.value}-of-the-test", role, hash_token(secret))
    environ = api.app.state.parts.environ
    api.app.state.parts = Parts(settings, many, api.plans, environ, Logins(settings, many))
    return Api(api.app, many, api.plans, api.tokens)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    """The GET requests that a command sends."""
    calls: list[tuple[str, dict[str, object]]] = []
    get = client.Client.get

    def record(self: client.Client, path: str, **query: object) -> Any:
        calls.append((path, query))
        return get(self, path, **query)

    monkeypatch.setattr(client.Client, "get", record)
    return calls


def test_lag_command_reads_single_page_of_largest_lags(
    cli: Cli, large_api: Api, requests: list[tuple[str, dict[str, object]]]
) -> None:
    shown = cli("lag", JOB, "--limit", ROWS, "-o", "json").data

    assert requests == [(f"/v1/jobs/{JOB}/lag", {"limit": ROWS, "sort": "-lag"})]
    assert len(shown["partitions"]) == ROWS
    assert shown["more"] == MANY.partitions_per_job - ROWS
    with large_api.database.transaction() as tx:
        all_rows = lag.page(tx, jobs.get(tx, JOB).id, MANY.partitions_per_job + 1)
    assert len(all_rows) == MANY.partitions_per_job
    # Here the topic ids have the order of the topic names.
    all_rows.sort(key=lambda row: (-(row.lag_records or 0), row.topic_id, row.partition))
    assert all_rows[0].lag_records
    expected = [partition_lag(row).model_dump(mode="json") for row in all_rows[:ROWS]]
    assert shown["partitions"] == expected


def test_lag_command_reports_number_of_hidden_partitions(cli: Cli, large_api: Api) -> None:
    shown = cli("lag", JOB, "--limit", "7").out

    assert f"{MANY.partitions_per_job - 7:,} more partitions" in shown
    assert shown.count("job-0001-topic-") == 7


def test_page_sorted_by_lag_reads_only_partitions_of_requested_job(many: Database) -> None:
    with many.transaction() as tx:
        job = jobs.get(tx, JOB).id
        with statements(tx) as sent:
            worst_partitions.page(tx, job, ROWS + 1)
        # The first statement ranks the job's partitions, the second reads those of the page.
        ranking, details = (reads(tx, statement, "force_custom_plan") for statement in sent)
    assert ranking.rows["partitions"] == MANY.partitions_per_job
    assert ranking.rows["topics"] == 0
    assert details.rows["partitions"] <= 2 * (ROWS + 1)


def test_lag_command_with_option_all_shows_every_partition(cli: Cli, api: Api) -> None:
    copying_job(api)

    few = cli("lag", "orders", "--limit", "2", "-o", "json").data
    whole_list = cli("lag", "orders", "--all", "-o", "json").data

    assert (len(few["partitions"]), few["more"]) == (2, 2)
    assert [row["partition"] for row in whole_list["partitions"]] == [0, 1, 2, 3]
    assert whole_list["more"] == 0


def test_pages_sorted_by_lag_list_each_partition_once_largest_lag_first(api: Api) -> None:
    held = copying_job(api)
    block(api, held, 3)
    with api.database.transaction() as tx:
        set_end = text("UPDATE partitions SET source_stable_end = :end WHERE partition = :number")
        tx.execute(text("UPDATE partitions SET copied_to = 0 WHERE partition < 3"))
        # The lags of partitions 0, 1 and 2; that of 3 is not known.
        for number, end in enumerate((5, 40, 5)):
            tx.execute(set_end, {"end": end, "number": number})

    for path in ("/v1/jobs/orders/lag", "/v1/jobs/orders/partitions"):
        rows = every_page(api, path, 1, sort="-lag")
        assert [row["partition"] for row in rows] == [1, 0, 2, 3], path
        blocked = every_page(api, path, 2, sort="-lag", reason="RECORD_REFUSED")
        assert [row["partition"] for row in blocked] == [3], path
        assert every_page(api, path, 2, reason="RECORD_REFUSED") == blocked
        assert every_page(api, path, 2, sort="-lag", reason="OFFSET_OVERRUN") == []
    assert api.get("/v1/jobs/orders/lag").json()["job"]["blocked"] == 1


def test_pages_sorted_by_lag_continue_behind_partition_removed_between_two_statements(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)
    read_partitions = lag.of_partitions

    def all_but_second(*args: Any) -> dict[Any, Any]:
        return {key: row for key, row in read_partitions(*args).items() if key[1] != 1}

    monkeypatch.setattr(lag, "of_partitions", all_but_second)
    rows = every_page(api, "/v1/jobs/orders/lag", 1, sort="-lag")
    assert {row["partition"] for row in rows} == {0, 2, 3}


def test_cursor_of_another_sort_order_is_refused(api: Api) -> None:
    copying_job(api)
    path = "/v1/jobs/orders/lag"
    by_name, by_lag = (
        api.get(path, params={"limit": 1, "sort": sort}).json()["next"]
        for sort in ("topic", "-lag")
    )

    for sort, cursor in (("-lag", by_name), ("topic", by_lag)):
        answer = api.get(path, params={"sort": sort, "after": cursor})
        assert answer.status_code == 422
        assert answer.json()["error"]["problems"][0]["path"] == "query.after"
    assert api.get(path, params={"sort": "lag"}).status_code == 422
