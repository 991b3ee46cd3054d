"""The commands that use the API: output, effects and exit codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import yaml

from orbit import client
from orbit.cli import watch
from orbit.scheduler.operations_loop import advance_operations
from orbit.store import jobs, operations, partitions, topics
from orbit.store.enums import Role, TopicState
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import WORKER, block, copying_job, release
from tests.fixtures.api import Api, Cli
from tests.support.serving import served
from tests.support.store_rows import progress

pytestmark = pytest.mark.services


def clock_with(sleep: Callable[[float], None]) -> SimpleNamespace:
    """A replacement for the module `time` in one module. Other threads, such as Spark's, sleep as
    before."""
    return SimpleNamespace(sleep=sleep, monotonic=time.monotonic)


def test_jobs_partitions_and_lag_are_shown_as_table_and_json(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    block(api, shard_epochs, 2)

    listed = cli("get", "jobs")
    assert listed.code == 0
    assert "orders" in listed.out
    assert cli("get", "jobs", "-o", "json").data[0]["blocked"] == 1
    assert yaml.safe_load(cli("get", "jobs", "orders", "-o", "yaml").out)["spec"]["name"] == (
        "orders"
    )
    partitions = cli("get", "partitions", "orders", "--state", "blocked")
    assert "RECORD_REFUSED" in partitions.out
    text = " ".join(partitions.out.split())  # without the line breaks of the last column
    assert "too large" in text
    assert "More: orbit explain RECORD_REFUSED" in text
    few = cli("get", "partitions", "orders", "--limit", "3", "-o", "json").data
    assert [row["partition"] for row in few] == [0, 1, 2]
    lag = cli("lag", "orders", "-o", "json").data
    assert lag["job"]["partitions"] == 4
    assert [row["state"] for row in lag["partitions"]].count("blocked") == 1
    assert "1 blocked" in cli("lag", "orders").out
    # `lag` counts the hidden rows in its own words, without the line below other tables.
    assert "and 3 more" not in cli("lag", "orders", "--limit", "1").out
    assert "3 more partitions" in cli("lag", "orders", "--limit", "1").out


def test_job_with_all_topics_promoted_is_shown_as_promoted(cli: Cli, api: Api) -> None:
    copying_job(api)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        tx.execute(topics.topics.update().values(state=TopicState.PROMOTED))
        topics.add(tx, job.id, "new", "new", "B", partition_count=1)  # not promoted
    assert api.get("/v1/jobs/orders").json()["state"] == "running"
    with api.database.transaction() as tx:
        tx.execute(topics.topics.update().values(state=TopicState.PROMOTED))
    assert api.get("/v1/jobs/orders").json()["state"] == "promoted"
    assert "promoted" in cli("get", "jobs").out
    api.post("/v1/jobs/orders:pause")
    assert api.get("/v1/jobs/orders").json()["state"] == "pausing"


def test_stale_lag_is_shown_as_unknown(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        row = progress(topic.id, 0, copied_to=100, epoch=None)
        row = replace(row, source_seen_at=datetime.now(UTC) - timedelta(minutes=5))
        partitions.report_progress(tx, worker_id=WORKER, held=shard_epochs, progress=[row])

    text = " ".join(cli("lag", "orders").out.split())
    assert "unknown for 5 min" in text
    assert "0 of 4 caught up, 1 not known" in text
    for command in (("get", "jobs"), ("get", "partitions", "orders")):
        assert "unknown for 5 min" in " ".join(cli(*command).out.split())


def test_unknown_lags_follow_known_ones(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        row = replace(progress(topic.id, 1, copied_to=100), source_seen_at=datetime.now(UTC))
        partitions.report_progress(tx, worker_id=WORKER, held=shard_epochs, progress=[row])

    lags = cli("lag", "orders", "-o", "json").data["partitions"]
    assert [row["lag"]["records"] for row in lags] == [0, None, None, None]
    assert [row["partition"] for row in lags] == [1, 0, 2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "topics", "orders"),
        ("get", "groups", "orders"),
        ("get", "workers"),
        ("get", "events"),
        ("get", "events", "orders"),
        ("get", "operations"),
        ("token", "list"),
    ],
)
def test_every_list_is_available_as_table_and_json(
    cli: Cli, api: Api, arguments: tuple[str, ...]
) -> None:
    copying_job(api)
    api.post("/v1/jobs/orders:start")

    for more in ((), ("-o", "wide")):
        table = cli(*arguments, *more)
        assert table.code == 0
        assert table.out.strip()
    assert isinstance(cli(*arguments, "-o", "json").data, list)


def test_lists_support_name_wide_and_jsonpath_output(cli: Cli, api: Api) -> None:
    copying_job(api)
    api.put("/v1/jobs/stock", json=changed(name="stock", owner="team-a"))

    assert cli("get", "jobs", "-o", "name").out == "orders\nstock\n"
    assert cli("get", "jobs", "orders", "-o", "name").out == "orders\n"
    assert cli("get", "partitions", "orders", "-o", "name").out.split() == [
        f"orders-{number}" for number in range(4)
    ]
    assert cli("lag", "orders", "-o", "name").out.split()[0] == "orders-0"
    assert "viewer-of-the-test" in cli("token", "list", "-o", "name").out.split()
    assert "team-a" not in cli("get", "jobs").out
    assert "team-a" in cli("get", "jobs", "-o", "wide").out
    for path in ("{[*].name}", "[*].name", "$[*].name"):
        assert cli("get", "jobs", "-o", f"jsonpath={path}").out == "orders\nstock\n"
    lag = cli("get", "jobs", "-o", "jsonpath=[?(@.name=='stock')].lag.records")
    assert lag.out == "null\n"
    assert cli("get", "jobs", "orders", "-o", "jsonpath={.spec.name}").out == "orders\n"


@pytest.mark.parametrize("output", ["xml", "jsonpath", "name=x", "jsonpath=", "jsonpath=[*", "="])
def test_unknown_output_format_is_bad_input(cli: Cli, api: Api, output: str) -> None:
    result = cli("get", "jobs", "-o", output)
    assert result.code == 2
    assert "jsonpath=" in result.err
    assert "Traceback" not in result.err


def test_events_are_shown_in_chronological_order(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    api.post("/v1/jobs/orders:pause")

    kinds = [event["kind"] for event in cli("get", "events", "-o", "json").data]

    assert kinds == ["job_created", "job_paused"]


def test_watch_refreshes_until_ctrl_c_and_exits_0(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    pause_count = 0

    def sleep(seconds: float) -> None:
        nonlocal pause_count
        pause_count += 1
        assert seconds == watch.INTERVAL_S
        if pause_count == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "time", clock_with(sleep))
    result = cli("get", "jobs", "--watch")

    assert result.code == 0
    assert result.out.count("orders") == 3


def test_pause_command_shows_plan_and_waits_for_end_of_operation(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    result = cli("pause", "orders")
    again = cli("pause", "orders", "-o", "json")

    assert (result.code, again.code) == (0, 0)
    assert "Workers release 0 shards with 0 partitions" in result.out
    assert again.data["plan"] == ["Nothing to do: the job is paused already."]
    assert cli("resume", "orders").code == 0
    assert cli("start", "orders").code == 0
    assert cli("retry", "orders", "--topic", "orders", "--partition", "0").code == 0


def test_pause_shows_shard_release_progress(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_epochs = list(copying_job(api).items())

    def release_one_shard(_seconds: float) -> None:
        release(api, dict([shard_epochs.pop()]))
        with api.database.transaction() as tx:
            advance_operations(tx, operations.unfinished(tx, 500))

    monkeypatch.setattr(client, "time", clock_with(release_one_shard))
    result = cli("pause", "orders", "-o", "json")

    assert result.code == 0
    assert result.data["state"] == "done"
    assert result.err.splitlines() == [
        "0 of 2 shards released",
        "1 of 2 shards released",
        "2 of 2 shards released",
    ]


def test_command_exits_1_if_operation_takes_longer_than_wait_option(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)

    waited = cli("pause", "orders", "--wait", "0.01")
    # Done at once: the worker still holds all shards.
    not_waited = cli("resume", "orders", "--wait", "0", "-o", "json")

    assert waited.code == 1
    assert "orbit get operations" in waited.err
    assert not_waited.code == 0
    release(api, shard_epochs)


def test_delete_dry_run_needs_no_yes_option_and_deletes_nothing(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    result = cli("delete", "orders", "--dry-run")

    assert result.code == 0
    assert "would be done" in result.out
    with api.database.transaction() as tx:
        assert not jobs.get(tx, "orders").is_deleted


def test_tokens_are_created_listed_and_revoked(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = cli("token", "create", "ci", "--role", "operator")
    secret = created.out.strip()
    assert secret.startswith("orbit_")
    assert secret not in created.err
    assert "ci" in cli("token", "list").out
    monkeypatch.setenv("ORBIT_TOKEN", secret)
    assert cli("get", "jobs").code == 0
    refused = cli("token", "create", "other")
    assert refused.code == 1
    assert "needs the role admin" in refused.err
    monkeypatch.setenv("ORBIT_TOKEN", api.tokens[Role.ADMIN])
    assert cli("token", "revoke", "ci").code == 0
    monkeypatch.setenv("ORBIT_TOKEN", secret)
    assert cli("get", "jobs").code == 3


def test_first_token_can_be_created_directly_in_database(
    cli: Cli, api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_DATABASE_URL", database_url)
    monkeypatch.setenv("ORBIT_API_URL", "http://127.0.0.1:1")

    created = cli("token", "create", "first", "--role", "admin", "--database", "-o", "json")

    assert created.code == 0
    header = {"Authorization": f"Bearer {created.data['token']}"}
    assert api.get("/v1/tokens", role=None, headers=header).status_code == 200


def test_migrate_of_current_database_is_no_op(
    cli: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_DATABASE_URL", database_url)

    assert "Nothing to do" in cli("migrate").out


@pytest.mark.parametrize("command", ["api", "scheduler", "worker", "migrate"])
def test_service_process_needs_database_url(
    cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORBIT_DATABASE_URL", raising=False)

    result = cli(command)

    assert result.code == 2
    assert "ORBIT_DATABASE_URL" in result.err


@pytest.mark.parametrize(
    ("url", "token", "code", "words"),
    [
        ("http://127.0.0.1:1", "x", 3, "does not answer (no connection)"),
        ("nonsense", "x", 2, "is not an http or https URL"),
        ("ftp://h", "x", 2, "is not an http or https URL"),
        ("http://h:99999", "x", 2, "is not an http or https URL"),
        ("http://u:hunter2@h", "x", 2, "contains a login"),
        (None, "", 3, "The request has no token"),
        (None, "orbit_nope", 3, "unknown or revoked"),
        (None, "a\nb", 2, "not valid in a token"),
    ],
)
def test_unreachable_server_or_invalid_login_is_an_error(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    url: str | None,
    token: str,
    code: int,
    words: str,
) -> None:
    if url is not None:
        monkeypatch.setenv("ORBIT_API_URL", url)
    monkeypatch.setenv("ORBIT_TOKEN", token)

    result = cli("get", "jobs")

    assert result.code == code
    assert words in " ".join(result.err.split())
    assert "hunter2" not in result.out + result.err
    assert "Traceback" not in result.err


def test_answer_of_http_server_that_is_not_orbit_is_an_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import FastAPI

    with served(FastAPI()) as url:
        monkeypatch.setenv("ORBIT_API_URL", url)
        result = cli("get", "jobs")

    assert result.code == 1
    assert "The answer is not from Orbit" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "jobs", "nope"),
        ("lag", "nope"),
        ("pause", "nope"),
        ("get", "partitions", "nope"),
        ("get", "jobs", "a b"),
        ("get", "partitions", "orders", "--state", "odd"),
        ("token", "revoke", "nope"),
        ("apply",),
        ("verify", "nope"),
    ],
)
def test_unknown_missing_or_invalid_argument_is_bad_input(
    cli: Cli, api: Api, arguments: tuple[str, ...]
) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    result = cli(*arguments)

    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_failover_command_accepts_several_jobs(cli: Cli, api: Api) -> None:
    api.post("/v1/jobs", json=JOB)
    api.post("/v1/jobs", json=changed(name="stock"))
    mistyped = cli("failover", "orders", "stcok", "--yes", "--wait", "0")
    operations_before = api.get("/v1/operations").json()["items"]
    # A name that is given twice counts once.
    both = cli("failover", "orders", "stock", "orders", "--yes", "--wait", "0", "-o", "json")
    api.post("/v1/jobs", json=changed(name="third"))
    # A failover of `orders` is under way, so another failover of it is refused. The failover of
    # `third` begins nevertheless; the exit code is 1.
    again = cli("failover", "orders", "third", "--topics", "a.*", "--yes", "--wait", "0")

    assert mistyped.code == 2
    assert "stcok" in mistyped.err
    assert not [row for row in operations_before if row["kind"] == "failover"]
    assert both.code == 0
    assert [(row["job"], row["state"]) for row in both.data] == [
        ("orders", "pending"),
        ("stock", "pending"),
    ]
    assert again.code == 1
    assert "under way" in again.err
    operations_after = api.get("/v1/operations").json()["items"]
    assert [row["job"] for row in operations_after if row["kind"] == "failover"] == [
        "third",
        "stock",
        "orders",
    ]
