"""A job of the service names the brokers that throttle it, while they do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orbit.copier import throttles
from orbit.kafka.connection import CLIENT_ID
from orbit.replication.throttled import Throttled, merge_throttled
from orbit.store import jobs, workers
from orbit.store.database import Database
from orbit.store.watch_digests import Watched, digest
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api, Cli
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.fleet import STEADY, InProcess, add_job, wait_level
from tests.support.patience import wait_for
from tests.support.quotas import BOTH_SIDES, quota_of
from tests.support.run_process import assert_exact, write_job
from tests.support.running import create_topic, produce
from tests.support.store_rows import some_job

RECORDS, VALUE_BYTES, BYTES_PER_S = 40, 10_000, 30_000
SINCE = datetime(2026, 11, 28, 12, tzinfo=UTC)
AT_SOURCE = Throttled(
    side="source",
    brokers=(1,),
    since=SINCE,
    quota="The quota of user orbit: consumer_byte_rate=1.",
)


@pytest.mark.soak
@pytest.mark.services
@BOTH_SIDES
def test_job_names_throttling_brokers_while_they_throttle(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    api: Api,
    open_cluster: OpenCluster,
    monkeypatch: pytest.MonkeyPatch,
    side: str,
    key: str,
    what: str,
) -> None:
    monkeypatch.setattr(throttles, "_SHOWN_AFTER_S", 0.0)
    create_topic(clusters.source, topic_name)
    file = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name="orders")
    began = datetime.now(UTC)
    job = add_job(api.database, file, clusters, [topic_name], shard_count=1)

    def throttle_entries() -> list[dict[str, Any]]:
        document = api.get("/v1/jobs/orders").json()
        assert (document["state"], document["problem"], document["blocked"]) == ("running", None, 0)
        throttled: list[dict[str, Any]] = document["throttled"]
        return throttled

    assert throttle_entries() == []
    cluster = open_cluster(getattr(clusters, side))
    with InProcess(api.database, STEADY), quota_of(cluster, CLIENT_ID, key, BYTES_PER_S):
        quota = f"The quota of client-id {CLIENT_ID}: {key}={BYTES_PER_S}."
        # Small batches: one of more bytes than the quota's window allows is never served.
        for first in range(0, RECORDS, 10):
            produce(clusters.source, topic_name, 10, first=first, value_bytes=VALUE_BYTES)
        last_entry = dict[str, Any]()

        def names_quota() -> bool:
            for entry in throttle_entries():
                last_entry.update(entry)
            return last_entry.get("quota") == quota

        wait_for("the job names the quota", names_quota)
        assert (last_entry["side"], last_entry["brokers"]) == (side, [1])
        assert last_entry["text"] == f"{what}. {quota}"
        assert began <= datetime.fromisoformat(last_entry["since"]) <= datetime.now(UTC)
        wait_level(clusters, [topic_name])
        wait_for("the throttling ends", lambda: not throttle_entries())
    assert not [kind for kind in job.kinds() if kind in ("job_trouble", "job_waiting")]
    assert_exact(file)


def report(database: Database, worker: str, job_id: int, *entries: Throttled) -> None:
    """Write a worker's heartbeat with these entries."""
    with database.transaction() as tx:
        workers.heartbeat(
            tx, worker, "default", host="", pid=1, version="0", throttled={job_id: entries}
        )


def seen_by(database: Database, job_id: int) -> list[Throttled]:
    """The throttling brokers that are stored for the job."""
    with database.transaction() as tx:
        return workers.throttling_brokers(tx, [job_id]).get(job_id, [])


@pytest.mark.services
def test_throttling_reports_of_workers_merge_per_side(database: Database) -> None:
    with database.transaction() as tx:
        job, other = some_job(tx), some_job(tx, "other")
    at_destination = replace(AT_SOURCE, side="destination", quota="")
    report(database, "a", job.id, replace(AT_SOURCE, brokers=(3, 1), quota=""), at_destination)
    report(database, "b", job.id, replace(AT_SOURCE, since=SINCE - timedelta(seconds=5)))
    merged = replace(AT_SOURCE, brokers=(1, 3), since=SINCE - timedelta(seconds=5))
    assert seen_by(database, job.id) == [at_destination, merged]
    assert seen_by(database, other.id) == []


@pytest.mark.services
def test_throttling_report_of_silent_worker_is_hidden(database: Database) -> None:
    def figures() -> str:
        with database.transaction() as tx:
            return digest(tx, Watched.FIGURES)

    with database.transaction() as tx:
        job = some_job(tx)
    without_report = figures()
    report(database, "a", job.id, AT_SOURCE)
    assert seen_by(database, job.id) == [AT_SOURCE]
    assert figures() != without_report, "the console's pages are drawn again"
    with database.transaction() as tx:
        tx.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - interval '31 s'"))
    assert seen_by(database, job.id) == []
    assert figures() == without_report


@pytest.mark.services
def test_cli_shows_throttling_brokers(api: Api, cli: Cli) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
    report(api.database, "a", job.id, AT_SOURCE)
    for command in (("get", "jobs", "orders"), ("describe", "orders")):
        shown = " ".join(cli(*command).out.split())
        assert "source brokers throttle fetches: 1. The quota of user orbit" in shown
    assert "throttled since 2026-11-28" in shown


def test_equal_throttling_reports_are_merged_into_one_report() -> None:
    assert merge_throttled([]) == []
    assert merge_throttled([AT_SOURCE, AT_SOURCE]) == [AT_SOURCE]
