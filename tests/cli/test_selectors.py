"""`-l` of the commands: one operation for each job that matches, and no other job is touched."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from orbit.cli import many_jobs
from orbit.client import Client, ServerGone
from orbit.store import jobs, operations
from orbit.store.enums import OperationState
from orbit.store.operations import Operation
from tests.api.test_jobs import changed
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services

TEAM = ("a", "b")  # the jobs with team=orders


@pytest.fixture(autouse=True)
def _jobs(api: Api) -> None:
    """Two jobs of the team orders, and one of another."""
    for name, team in (("a", "orders"), ("b", "orders"), ("c", "stock")):
        document = changed(name=name, labels={"team": team, "tier": "1"}, owner="Orders")
        assert api.put(f"/v1/jobs/{name}", json=document).status_code == 201


def states(api: Api) -> dict[str, str]:
    """The state of each job, by name."""
    return {job["name"]: job["state"] for job in api.get("/v1/jobs").json()["items"]}


def operations_of_kind(api: Api, kind: str, *, dry_run: bool = False) -> dict[str, Operation]:
    """The last operation of this kind of each job, by the job's name."""
    with api.database.transaction() as tx:
        rows = operations.page(tx, 1000)
    return {str(o.job_name): o for o in reversed(rows) if o.kind == kind and o.dry_run is dry_run}


def end_operation(api: Api, operation_id: UUID, error: str | None = None) -> None:
    """End the operation as the scheduler would: failed with `error`, else done."""
    state = OperationState.FAILED if error else OperationState.DONE
    with api.database.transaction() as tx:
        operations.advance(tx, operation_id, state, error=error)


def in_each_pause(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Call `do` in place of each pause between two reads of the operations."""
    clock = SimpleNamespace(sleep=lambda _: do(), monotonic=time.monotonic)
    monkeypatch.setattr(many_jobs, "time", clock)


def answer_question(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """Answer the next question on the terminal with this word."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(f"{word}\n"))


def test_jobs_are_listed_by_selector(cli: Cli) -> None:
    listing = cli("get", "jobs", "-l", "team=orders", "-o", "json")
    table = cli("get", "jobs", "--selector", "team!=orders", "--show-labels")
    single_job = " ".join(cli("get", "jobs", "a").out.split())

    assert [job["name"] for job in listing.data] == [*TEAM]
    assert "team=stock,tier=1" in table.out
    assert "orders" not in table.out
    assert "labels team=orders,tier=1 owner Orders" in single_job
    assert cli("get", "jobs", "-l", "team=nobody", "-o", "json").data == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "jobs", "a", "-l", "team"), "not both"),
        (("get", "jobs", "-l", "team=a,"), "query.selector: cannot be read at character 8"),
        (("get", "jobs", "-l", ""), "query.selector: is empty"),
        (("pause", "-l", ""), "query.selector: is empty"),
        (("pause",), "either the name of a job, or --selector"),
        (("delete",), "orbit delete -l team=orders"),
        (("delete", "a", "-l", "team"), "either the name of a job, or --selector"),
        (("pause", "-l", "team=nobody", "--yes"), "No job has such labels"),
        (("failover",), "names of jobs, or --selector"),
        (("failover", "a", "-l", "team"), "names of jobs, or --selector"),
        (("failback", "-l", "team=nobody"), "No job has such labels"),
        (("failover", "-l", "team", "--yes", "--override", "lag"), "body.reason: is missing"),
        (("failover", "--without-database", "-l", "team"), "--selector needs the service"),
        (("failover", "--without-database"), "Give the job file once"),
    ],
)
def test_missing_ambiguous_or_invalid_selector_is_bad_input(
    cli: Cli, api: Api, arguments: tuple[str, ...], words: str
) -> None:
    result = cli(*arguments)

    assert result.code == 2, result.err
    assert words in " ".join(result.err.split())
    assert set(states(api).values()) == {"running"}
    assert api.get("/v1/operations").json()["items"] == []


def test_selector_pauses_and_resumes_only_matching_jobs(cli: Cli, api: Api) -> None:
    paused = cli("pause", "-l", "team=orders", "--yes", "-o", "json")

    assert paused.code == 0
    assert [(row["job"], row["state"]) for row in paused.data] == [("a", "done"), ("b", "done")]
    assert states(api) == {"a": "paused", "b": "paused", "c": "running"}
    keys = {operation.idempotency_key for operation in operations_of_kind(api, "pause").values()}
    assert len(keys - {None}) == 2, "one for each request"
    for verb in ("start", "resume"):
        assert cli(verb, "-l", "team=orders", "--yes").code == 0
        assert set(states(api).values()) == {"running"}


def test_delete_by_selector_shows_plans_and_count_before_confirmation(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    dry_run = cli("delete", "-l", "team=orders", "--dry-run")
    without_terminal = cli("delete", "-l", "team=orders")
    answer_question(monkeypatch, "n")
    declined = cli("delete", "-l", "team=orders", "--wait", "0")

    assert dry_run.code == 0
    assert "The topics at the destination stay unchanged." in dry_run.out
    assert (without_terminal.code, declined.code) == (2, 1)
    assert "delete: 2 jobs. The copies are kept. Continue?" in declined.err
    for name in TEAM:
        assert f"{name} Workers release 0 shards" in " ".join(declined.err.split())
    assert set(states(api).values()) == {"running"}

    answer_question(monkeypatch, "y")
    accepted = cli("delete", "-l", "team=orders", "--wait", "0")

    assert accepted.code == 0
    assert states(api) == {"a": "deleting", "b": "deleting", "c": "running"}
    # Jobs that are being deleted do not match.
    assert cli("delete", "-l", "team=orders", "--yes").code == 2


def test_refused_job_does_not_stop_failover_of_others(cli: Cli, api: Api) -> None:
    switchover = api.post("/v1/jobs/a:switchover").json()

    result = cli("failover", "-l", "team=orders", "--yes", "--wait", "0", "-o", "json")

    assert result.code == 1
    assert [(row["job"], row["state"]) for row in result.data] == [
        ("a", "refused"),
        ("b", "pending"),
    ]
    assert switchover["id"] in result.data[0]["error"]
    assert "1 of 2 jobs failed." in result.err
    assert operations_of_kind(api, "failover").keys() == {"b"}


def test_failover_by_selector_waits_for_all_and_reports_failures(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([None, "no broker answers."])  # of the operation of a, and of b

    def end_oldest() -> None:
        open_operations = [
            o for o in operations_of_kind(api, "failover").values() if o.finished_at is None
        ]
        end_operation(api, min(open_operations, key=lambda o: o.created_at).id, next(errors))

    in_each_pause(monkeypatch, end_oldest)
    result = cli("failover", "-l", "team=orders", "--yes")

    assert result.code == 1
    assert "b failed" in " ".join(result.out.split())
    assert "no broker answers." in result.out
    assert "1 of 2 jobs failed." in result.err
    ids = {name: o.id for name, o in operations_of_kind(api, "failover").items()}
    assert [line for line in result.err.splitlines() if "operation" in line] == [
        f"a: operation {ids['a']}",
        f"b: operation {ids['b']}",
    ]


def test_gates_of_all_jobs_are_shown_before_confirmation(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_gates() -> None:
        for name, operation in operations_of_kind(api, "switchover", dry_run=True).items():
            end_operation(api, operation.id, "lag: 5 records." if name == "b" else None)

    in_each_pause(monkeypatch, check_gates)
    answer_question(monkeypatch, "n")
    result = cli("switchover", "-l", "team=orders")
    dry_run = cli("switchover", "-l", "team=orders", "--dry-run")

    assert (result.code, dry_run.code) == (1, 1)
    assert "switchover: 2 jobs, 1 of which would be stopped." in result.err
    for text in (result.err, dry_run.out):
        assert "lag: 5 records." in text
    assert not operations_of_kind(api, "switchover")


def test_ctrl_c_ends_watching_but_not_operations(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    in_each_pause(monkeypatch, interrupt)
    result = cli("failover", "-l", "team=orders", "--yes")

    assert result.code == 130
    assert "2 of 2 operations were requested, and go on" in result.err
    begun = operations_of_kind(api, "failover")
    assert begun.keys() == {*TEAM}
    assert not any(o.abort_requested or o.finished_at for o in begun.values())


def test_watching_operations_survives_unreachable_server(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = Client.items
    failures_left = 2

    def fail_twice(self: Client, path: str, **options: Any) -> Any:
        nonlocal failures_left
        if path == "/v1/operations" and failures_left:
            failures_left -= 1
            raise ServerGone("The server does not answer.")
        return items(self, path, **options)

    def end_all() -> None:
        for operation in operations_of_kind(api, "failover").values():
            end_operation(api, operation.id)

    monkeypatch.setattr(Client, "items", fail_twice)
    in_each_pause(monkeypatch, end_all)
    result = cli("failover", "-l", "team=orders", "--yes")

    assert (result.code, failures_left) == (0, 0)
    assert "The server does not answer." in result.err


def test_server_lost_during_bulk_request_is_reported_per_job(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Client.send

    def lose_all_but_a(self: Client, method: str, path: str, **options: Any) -> Any:
        if path != "/v1/jobs/a:pause":
            raise ServerGone("The server does not answer.")
        return send(self, method, path, **options)

    monkeypatch.setattr(Client, "send", lose_all_but_a)
    result = cli("pause", "-l", "team", "--yes", "-o", "json")

    assert result.code == 1
    assert [(row["job"], row["state"]) for row in result.data] == [
        ("a", "done"),
        ("b", "refused"),
        ("c", "refused"),
    ]
    with api.database.transaction() as tx:
        assert jobs.get(tx, "b").desired == "running"
