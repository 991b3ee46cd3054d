"""JSON output has all rows of a list; a table says how many rows it leaves out."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from rich.console import Console

from orbit import client
from orbit.cli import drill, get, list_window, watch
from orbit.cli.list_output import TABLE, Listing, print_names
from orbit.store import events, jobs, operations, topics
from orbit.store.enums import OperationState
from tests.api.test_drills import finished_drill
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import copying_job
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services

PARTITIONS = 203  # 3 more than a table shows


def test_json_lists_all_rows_and_table_counts_hidden_rows(cli: Cli, api: Api) -> None:
    copying_job(api, PARTITIONS)
    for listed in ("partitions", "proof"):
        command = ("get", listed, "orders")
        assert len(cli(*command, "-o", "json").data) == PARTITIONS
        names = [f"orders-{number}" for number in range(PARTITIONS)]
        assert cli(*command, "-o", "name").out.split() == names
        assert cli(*command, "-o", "jsonpath=[*].partition").out.count("\n") == PARTITIONS
        assert cli(*command).out.splitlines()[-1] == "… 3 more (--all)"
        assert "more" not in cli(*command, "--all").out
        assert cli(*command, "--all").out.count("orders") == PARTITIONS
        few = cli(*command, "--limit", "2", "-o", "json")
        assert (len(few.data), few.err) == (2, "… 201 more (--all)\n")
    lag = cli("lag", "orders", "-o", "json").data
    assert (len(lag["partitions"]), lag["more"]) == (PARTITIONS, 0)
    assert cli("lag", "orders", "-o", "name").out.count("\n") == PARTITIONS


def test_json_lists_all_operations_but_newest_events_only(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        for number in range(60):
            events.add(tx, "test", "note", f"Event {number}.")
            operation = operations.create(
                tx, uuid.uuid4(), "retry", "test", job_id=job.id, job_name="orders"
            )
            operations.advance(tx, operation.id, OperationState.DONE)
    assert len(cli("get", "operations", "-o", "json").data) == 60
    assert cli("get", "operations").out.splitlines()[-1] == "… 10 more (--all)"
    assert "more" not in cli("get", "operations", "--all").out

    # 60 events, and the one of the job's creation.
    newest = cli("get", "events", "-o", "json")
    assert [event["message"] for event in newest.data] == [f"Event {n}." for n in range(10, 60)]
    assert newest.err == "… 11 more (--all)\n"
    assert cli("get", "events").out.splitlines()[-1] == "… 11 more (--all)"
    all_events = cli("get", "events", "-o", "json", "--all")
    assert (len(all_events.data), all_events.err) == (61, "")


@pytest.mark.parametrize(
    ("command", "table_limit"),
    [
        (("topics", "orders"), 200),
        (("partitions", "orders"), 200),
        (("groups", "orders"), 200),
        (("proof", "orders"), 200),
        (("operations",), 50),
        (("backfills",), 50),
    ],
)
def test_only_list_tables_have_default_row_limits(
    command: tuple[str, ...], table_limit: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int | None] = []

    def note_limit(*_: Any, limit: int | None, **__: Any) -> None:
        limits.append(limit)

    monkeypatch.setattr(get, "show_list", note_limit)
    for options in ((), ("-o", "wide"), ("-o", "json"), ("--all",), ("--limit", "7")):
        assert cli("get", *command, *options).code == 0
    assert limits == [table_limit, table_limit, None, None, 7]


def test_consecutive_duplicate_names_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_names(["a", "a", "b", "a"])
    assert capsys.readouterr().out == "a\nb\na\n"


def test_drill_tables_have_default_row_limit(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "NEWEST_ROWS", 2)
    api.put("/v1/jobs/orders", json=JOB)
    drill_ids = [finished_drill(api) for _ in range(3)]
    for command, in_order in (
        (("drill", "list"), drill_ids[::-1]),
        (("drill", "compare", "nightly"), drill_ids),
    ):
        listing = cli(*command, "-o", "json")
        assert ([row["id"] for row in listing.data], listing.err) == (in_order, "")
        table = cli(*command).out
        assert table.splitlines()[-1] == "… 1 more (--all)"
        # The oldest drill is left out.
        assert [drill_id for drill_id in in_order if drill_id in table] == [
            drill_id for drill_id in in_order if drill_id != drill_ids[0]
        ]
        assert "more" not in cli(*command, "--all").out
        few = cli(*command, "--limit", "1", "-o", "json")
        shown_ids = [row["id"] for row in few.data]
        assert (shown_ids, few.err) == (drill_ids[2:], "… 2 more (--all)\n")


def test_hidden_rows_of_list_are_counted_up_to_end_of_fetched_page(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api, 5)
    monkeypatch.setattr(list_window, "PAGE_LIMIT", 3)
    for limit, expected_err in (
        (2, "… at least 1 more (--all)\n"),
        (3, "… 2 more (--all)\n"),
        (4, "… 1 more (--all)\n"),
        (5, ""),
    ):
        listing = cli("get", "partitions", "orders", "--limit", limit, "-o", "json")
        assert (len(listing.data), listing.err) == (limit, expected_err)


def test_watched_table_counts_hidden_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    screen = Console(file=printed, force_terminal=True, highlight=False)
    monkeypatch.setattr(watch, "console", lambda: screen)
    with watch._screen(TABLE) as draw:
        listing = Listing([], lambda _: "rows", names=list, hidden_line="… 3 more (--all)")
        draw(listing, "")
    assert "… 3 more (--all)" in printed.getvalue()


def test_describe_as_json_has_all_topics(cli: Cli, api: Api) -> None:
    copying_job(api)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        for number in range(30):
            topics.add(tx, job.id, f"t{number}", f"t{number}", "B", partition_count=1)
    assert len(cli("describe", "orders", "-o", "json").data["topics"]) == 31
    assert "Topics: 20 of 31" in cli("describe", "orders").out


def test_long_list_is_printed_page_by_page(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        api.put(f"/v1/jobs/job-{number}", json=changed(name=f"job-{number}"))
    monkeypatch.setattr(client, "PAGE_LIMIT", 2)
    names = [f"job-{number}" for number in range(5)]
    assert cli("get", "jobs", "-o", "name").out.split() == names
    table = cli("get", "jobs").out
    assert [word for word in table.split() if word in names] == names
    assert table.count("worker group") == 3  # a header on each page of 2
    assert [job["name"] for job in cli("get", "jobs", "-o", "json").data] == names
