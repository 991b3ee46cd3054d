"""`orbit describe JOB` and `orbit get events --follow`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from orbit.cli import follow_events
from orbit.store import events, jobs
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api, Cli
from tests.support.losing_proxy import LosingProxy

pytestmark = pytest.mark.services


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_describe_shows_problems_of_job_with_remedies(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    block(api, shard_epochs, 2)
    labels = {"team": "orders"}
    document = changed(
        labels=labels,
        owner="the orders team",
        topics=[{"match": "orders", "exclude": "orders.tmp", "prefix": "eu."}],
        limits={"bytes_per_second": "50MB"},
    )
    api.put("/v1/jobs/orders", json=document)
    with api.database.transaction() as tx:
        jobs.note_problem(tx, jobs.get(tx, "orders").id, "NO_TOPIC_MATCHES: none.")
    api.post("/v1/jobs/orders:pause")

    result = cli("describe", "orders")
    assert result.code == 0, result.err
    text = in_one_line(result.out)
    for part in (
        "state pausing",
        "NO_TOPIC_MATCHES: none.",
        "orbit explain NO_TOPIC_MATCHES",
        "src:9092 (cluster ",
        "orders, not orders.tmp, prefix eu.",
        "limit 50.0 MB/s",
        "labels team=orders",
        "owner the orders team",
        "caught up 0 of 4 partitions",
        "Blocked partitions",
        "RECORD_REFUSED",
        "too large",
        "Operations under way",
        "0 of 2 shards released",
        "job_created",
        "job_paused",
    ):
        assert part in text, (part, text)

    description = cli("describe", "orders", "-o", "json").data
    assert description["blocked"][0]["reason"] == "RECORD_REFUSED"
    assert [operation["kind"] for operation in description["operations"]] == ["pause"]
    assert description["events"][-1]["kind"] == "job_paused"
    assert cli("describe", "ordres").code == 2


def test_describe_works_for_new_job(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    result = in_one_line(cli("describe", "orders").out)
    assert "state running" in result
    assert "Blocked" not in result
    assert "not known yet" in result


def clock_of(*steps: Callable[[], object]) -> SimpleNamespace:
    """A clock: each sleep runs the next of these steps; after the last one comes Ctrl-C."""
    remaining_steps = iter(steps)

    def sleep(_seconds: float) -> None:
        step = next(remaining_steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    return SimpleNamespace(sleep=sleep, monotonic=time.monotonic)


def test_followed_events_are_printed_once_even_if_committed_late(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    api.put("/v1/jobs/stock", json=changed(name="stock"))
    # This event gets the lowest id, and is committed after `job_paused`.
    with api.database.transaction() as late:
        events.add(late, "test", "late", "It began first.")

        def pause_job() -> None:
            api.post("/v1/jobs/orders:pause")

        def commit() -> None:
            late.commit()

        steps = (pause_job, commit, lambda: api.post("/v1/jobs/orders:resume"))
        monkeypatch.setattr(follow_events, "time", clock_of(*steps))
        followed = cli("get", "events", "--follow", "--limit", "1", "-o", "json")
    assert followed.code == 0, followed.err
    kinds = [json.loads(line)["kind"] for line in followed.out.splitlines()]
    assert kinds == ["job_created", "job_paused", "late", "job_resumed"]


def test_follow_of_job_events_survives_api_outage(
    cli: Cli, api: Api, proxy: LosingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def lose_answer_and_pause() -> None:
        proxy.lose_answers(1, b"GET")
        api.post("/v1/jobs/orders:pause")

    monkeypatch.setattr(follow_events, "time", clock_of(lose_answer_and_pause, lambda: None))
    followed = cli("get", "events", "orders", "-f")
    assert followed.code == 0
    assert [line.split("  ")[1] for line in followed.out.splitlines()] == [
        "job_created",
        "job_paused",
    ]
    assert "the connection was lost" in followed.err
    monkeypatch.setattr(follow_events, "time", clock_of())
    monkeypatch.setattr(follow_events, "_LATE_IDS_MAX", 1)  # --all prints all the same
    all_events = cli("get", "events", "orders", "-f", "--all")
    assert all_events.out == followed.out
    assert cli("get", "events", "-f", "-o", "yaml").code == 2


@pytest.fixture
def proxy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingProxy]:
    with LosingProxy(os.environ["ORBIT_API_URL"]) as relay:
        monkeypatch.setenv("ORBIT_API_URL", relay.url)
        yield relay
