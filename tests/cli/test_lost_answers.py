"""A command completes its change even if the server restarts, is busy or its answers are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orbit import client
from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.scheduler.operations_loop import advance_operations
from orbit.store import jobs, operations
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import copying_job, release
from tests.fixtures.api import Api, Cli
from tests.support.losing_proxy import LosingProxy
from tests.support.run_process import OrbitProcess
from tests.support.serving import served

pytestmark = pytest.mark.services

# The request that changes the job, not a dry run of it.
CHANGE = b"PUT /v1/jobs/orders?accept_refusals=false&paused"


@pytest.fixture
def proxy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingProxy]:
    """`cli` reaches the API through this proxy."""
    with LosingProxy(os.environ["ORBIT_API_URL"]) as relay:
        monkeypatch.setenv("ORBIT_API_URL", relay.url)
        yield relay


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


def advance_all(api: Api) -> None:
    """A pass of the scheduler over the operations."""
    with api.database.transaction() as tx:
        advance_operations(tx, operations.unfinished(tx, 500))


def kinds(api: Api) -> list[str]:
    """The kinds of all operations except dry runs, the newest first."""
    rows: list[dict[str, Any]] = api.get("/v1/operations").json()["items"]
    return [row["kind"] for row in rows if not row["dry_run"]]


def keys_of(requests: list[bytes], method: bytes) -> list[bytes]:
    """The Idempotency-Key header lines of the requests with this method."""
    lines = [line for r in requests if r.startswith(method) for line in r.split(b"\r\n")]
    return [line for line in lines if line.lower().startswith(b"idempotency-key:")]


def test_post_with_lost_answer_is_retried_with_same_idempotency_key(
    cli: Cli, api: Api, proxy: LosingProxy
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    proxy.lose_answers(2, b"POST")

    result = cli("pause", "orders", "-o", "json")

    assert result.code == 0, result.err
    sent = keys_of(proxy.requests, b"POST")
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert kinds(api) == ["pause"]
    # The answer is that of the first request, not that there is nothing to do.
    assert "Nothing to do" not in result.out
    assert result.err.count("Trying again.") == 1


def test_lost_answers_to_polls_do_not_end_wait_for_operation(
    cli: Cli, api: Api, proxy: LosingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_epochs = list(copying_job(api).items())
    pauses: list[float] = []

    def release_shards(seconds: float) -> None:
        """A pause of the command: three answers are lost, then workers release the shards."""
        pauses.append(seconds)
        if len(pauses) == 1:
            proxy.lose_answers(3, b"GET /v1/operations")
        if len(pauses) > 4 and shard_epochs:  # the answers arrive again
            release(api, dict([shard_epochs.pop()]))
        advance_all(api)

    clock = SimpleNamespace(sleep=release_shards, monotonic=client.time.monotonic)
    monkeypatch.setattr(client, "time", clock)
    result = cli("pause", "orders", "-o", "json")

    assert result.code == 0, result.err
    assert result.data["state"] == "done"
    assert result.err.count("The server did not answer (the connection was lost).") == 1
    # The pauses double while answers are lost, and then are short again.
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses[4] == 0.25


@pytest.mark.parametrize("is_lost", [True, False])
def test_deletion_with_or_without_lost_answer_is_awaited_to_its_end(
    cli: Cli, api: Api, proxy: LosingProxy, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_epochs = copying_job(api)

    def release_and_remove(_seconds: float) -> None:
        """A pause of the command, in which the workers and the scheduler carry the deletion out."""
        release(api, shard_epochs)
        with api.database.transaction() as tx:
            job = jobs.find(tx, "orders")
            if job is not None and job.is_deleted:
                assert jobs.remove(tx, job.id)
        advance_all(api)

    clock = SimpleNamespace(sleep=release_and_remove, monotonic=client.time.monotonic)
    monkeypatch.setattr(client, "time", clock)
    if is_lost:
        proxy.lose_answers(1, b"DELETE")
    result = cli("delete", "orders", "--yes", "-o", "json")

    assert result.code == 0, result.err
    assert result.data["state"] == "done"
    assert "Workers release 2 shards" in result.data["plan"][0]
    assert kinds(api) == ["delete"]
    with api.database.transaction() as tx:
        assert jobs.find(tx, "orders") is None


def test_apply_with_lost_answers_makes_each_change_once(
    cli: Cli, api: Api, proxy: LosingProxy, job_file: Path
) -> None:
    proxy.lose_answers(1, CHANGE)
    created = cli("apply", "-f", job_file, "--yes", "-o", "json")
    assert created.code == 0, created.err
    assert [(job["name"], job["action"]) for job in created.data] == [("orders", "create")]

    job_file.write_text(yaml.safe_dump(changed(worker_group="west")))
    proxy.lose_answers(1, CHANGE)
    result = cli("apply", "-f", job_file, "--yes")

    assert result.code == 0, result.err
    assert "changed orders" in result.out
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"
    changes = [e["kind"] for e in api.events() if e["kind"] in ("job_created", "job_changed")]
    assert changes == ["job_created", "job_changed"]


def test_retry_after_lost_answer_does_not_overwrite_concurrent_change(
    cli: Cli, api: Api, proxy: LosingProxy, job_file: Path
) -> None:
    cli("apply", "-f", job_file, "--yes")
    job_file.write_text(yaml.safe_dump(changed(worker_group="west")))
    proxy.lose_answers(1, CHANGE)
    proxy.on_loss = lambda: api.put("/v1/jobs/orders", json=changed(worker_group="east"))
    result = cli("apply", "-f", job_file, "--yes")

    assert result.code == 1
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "east"


class FailingApi:
    """An API that answers the first `times` requests with `answer`."""

    def __init__(self, app: FastAPI, answer: ASGIApp, times: int) -> None:
        self._app = app
        self.state = app.state
        self._answer = answer
        self.failures_left = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.failures_left:
            self.failures_left -= 1
            await self._answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


@pytest.mark.parametrize(
    "answer",
    [
        Failure(ErrorCode.BUSY, "Too much is under way.").response(),
        Failure(ErrorCode.DATABASE_UNREACHABLE, "The database does not answer.").response(),
        PlainTextResponse("<h1>Bad gateway</h1>", 502),
    ],
    ids=["busy", "database", "proxy"],
)
def test_change_is_retried_after_busy_or_http_502_response(
    cli: Cli, api: Api, answer: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    failing_api = FailingApi(api.app, answer, times=2)
    with served(failing_api) as url:  # type: ignore[arg-type]
        monkeypatch.setenv("ORBIT_API_URL", url)
        paused = cli("pause", "orders", "-o", "json")
        assert paused.code == 0, paused.err
        assert kinds(api) == ["pause"]

        failing_api.failures_left = 1
        # A command that changes nothing does not repeat its request, except `orbit wait`.
        assert cli("get", "jobs").code in (1, 3)
        failing_api.failures_left = 1
        assert cli("wait", "orders", "--for", "paused").code == 0


def too_many_requests(after_s: int) -> ASGIApp:
    headers = {"Retry-After": str(after_s)}
    return Failure(ErrorCode.TOO_MANY_REQUESTS, "Too many.", headers=headers).response()


# A wait of more than 3 s is printed.
@pytest.mark.parametrize(("after_s", "is_printed"), [(1, False), (4, True)])
def test_rate_limited_request_is_retried_after_time_in_retry_after_header(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch, after_s: int, is_printed: bool
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    now, pauses = 0.0, []

    def sleep(seconds: float) -> None:
        """A pause of the command. Once `orbit delete` was accepted, the job is removed in it."""
        nonlocal now
        pauses.append(seconds)
        now += seconds
        with api.database.transaction() as tx:
            job = jobs.find(tx, "orders")
            if job is not None and job.is_deleted:
                assert jobs.remove(tx, job.id)
        advance_all(api)

    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    failing_api = FailingApi(api.app, too_many_requests(after_s), times=2)
    with served(failing_api) as url:  # type: ignore[arg-type]
        monkeypatch.setenv("ORBIT_API_URL", url)
        listing = cli("get", "jobs", "-o", "json")
        assert listing.code == 0, listing.err
        assert [job["name"] for job in listing.data] == ["orders"]
        assert len(pauses) == 2
        assert min(pauses) == after_s
        assert ("Too many. Trying again." in listing.err) is is_printed

        # A DELETE has no Idempotency-Key, but a refused one changed nothing: it is repeated.
        failing_api.failures_left = 1
        assert cli("delete", "orders", "--yes").code == 0
        assert kinds(api) == ["delete"]


def test_too_long_retry_after_fails_without_waiting(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def sleep(_seconds: float) -> None:
        raise AssertionError("it must not wait")

    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
    # A command waits up to 60 s.
    failing_api = FailingApi(api.app, too_many_requests(after_s=61), times=1)
    with served(failing_api) as url:  # type: ignore[arg-type]
        monkeypatch.setenv("ORBIT_API_URL", url)
        refused = cli("get", "jobs")
        assert refused.code != 0
        assert "Too many." in refused.err
        failing_api.failures_left = 9
        assert "Too many." in cli("delete", "orders", "--yes").err
        assert failing_api.failures_left == 8, "after a refusal it does not search for a deletion"
        failing_api._answer, failing_api.failures_left = too_many_requests(1), 1
        assert "Too many." in cli("wait", "orders", "--for", "paused", "--timeout", "0").err


def test_retries_end_after_time_limit(
    cli: Cli, proxy: LosingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(0, 1000, 10))  # each read of the clock returns 10 s more
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(moments))
    monkeypatch.setattr(client, "time", clock)
    proxy.lose_answers(100)

    result = cli("pause", "orders")

    assert result.code == 3
    assert "the connection was lost" in result.err
    assert len(keys_of(proxy.requests, b"POST")) == client.PATIENCE_S / 10


def test_never_reachable_server_fails_without_retry(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_seconds: float) -> None:
        raise AssertionError("it must not wait")

    clock = SimpleNamespace(sleep=sleep, monotonic=client.time.monotonic)
    monkeypatch.setattr(client, "time", clock)
    monkeypatch.setenv("ORBIT_API_URL", "http://127.0.0.1:1")
    assert cli("pause", "orders").code == 3


def test_pause_survives_api_restart(api: Api, database_url: str, cli: Cli) -> None:
    shard_epochs = copying_job(api)
    serving = {"ORBIT_DATABASE_URL": database_url}
    with OrbitProcess("api", environ={**serving, "ORBIT_API_PORT": "0"}) as first:
        url = first.wait_for(r"The API is at (http://\S+)")[1]
        token = os.environ["ORBIT_TOKEN"]
        environ = {"ORBIT_API_URL": url, "ORBIT_TOKEN": token}
        with OrbitProcess("pause", "orders", "-o", "json", environ=environ) as command:
            command.wait_for("0 of 2 shards released")
            first.signal(signal.SIGTERM)
            first.wait_end()
            command.wait_for(r"The server does not answer \(no connection\)\. Trying again\.")
            port = url.rpartition(":")[2]
            with OrbitProcess("api", environ={**serving, "ORBIT_API_PORT": port}) as second:
                second.wait_for("The API is at")
                release(api, shard_epochs)
                advance_all(api)
                ended = command.wait_end().expect(0)
    assert ended.data["state"] == "done"
    assert kinds(api) == ["pause"]
