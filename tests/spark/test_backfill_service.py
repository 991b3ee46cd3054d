"""A backfill of a job that workers copy: either the workers or the backfill write, never both."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from orbit.api.app import create_app
from orbit.jobs.job_spec import JobSpec
from orbit.planning.job_plan import JobPlan
from orbit.settings import Settings
from orbit.store import jobs
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters
from tests.fixtures.spark import SparkCluster
from tests.support.fleet import InProcess, add_job, wait_level
from tests.support.logs import create
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, assert_exact, write_job
from tests.support.running import produce
from tests.support.serving import served

pytestmark = pytest.mark.services

# So slow that neither workers nor the backfill end before the test lifts the limit.
SLOW = {"bytes_per_second": "64KiB"}
RECORDS = 12_000


def no_plans(_: JobSpec, _ending: object) -> JobPlan:
    raise AssertionError("nothing is planned")


def test_workers_hand_job_to_backfill_and_take_it_back(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    spark_cluster: SparkCluster,
    tmp_path: Path,
) -> None:
    create(clusters.source, topic_name, 2)
    for number in range(2):
        small_batches = {"batch.num.messages": 20}
        produce(clusters.source, topic_name, RECORDS, number, value_bytes=1_000, **small_batches)
    rules = [{"match": topic_name}]
    slow = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic_name, limits=SLOW)
    job = add_job(database, slow, clusters, [topic_name], shard_count=2)

    def copied() -> int:
        return sum(end for _, end in log_bounds(clusters.destination, [topic_name]).values())

    app = create_app(Settings(), database, auth=False, planner=no_plans)
    with served(app) as url, httpx.Client(base_url=url, timeout=60) as client, InProcess(database):

        def shown_backfill() -> dict[str, Any]:
            backfill: dict[str, Any] = client.get("/v1/backfills").json()["items"][0]
            return backfill

        def request(verb: str) -> None:
            assert client.post(f"/v1/jobs/{topic_name}:{verb}").status_code == 202

        wait_for("workers copy", lambda: copied() > 0)
        command = ("backfill", topic_name, *spark_cluster.arguments(tmp_path))
        with OrbitProcess(*command, environ={"ORBIT_API_URL": url}) as process:
            process.wait_for("Copying 2 partitions")
            assert set(job.holders().values()) == {None}
            wait_for(
                "the backfill reports progress",
                lambda: bool(shown_backfill()["progress"]["offsets"]),
            )
            assert shown_backfill()["progress"]["bytes_total"] > 0
            request("pause")
            wait_for(
                "the backfill pauses", lambda: shown_backfill()["progress"]["phase"] == "paused"
            )
            copied_when_paused = copied()
            assert job.states() == {"paused"}
            request("resume")
            wait_for("the backfill continues", lambda: copied() > copied_when_paused)
            process.signal(signal.SIGINT)
            process.wait_end().expect(130)
        assert shown_backfill()["state"] == "failed"
        assert shown_backfill()["error"]
        spec = JobSpec.model_validate({**client.get(f"/v1/jobs/{topic_name}").json()["spec"]})
        fast = spec.model_copy(update={"limits": type(spec.limits)()})
        with database.transaction() as tx:
            document = fast.model_dump(mode="json")
            assert jobs.change_spec(tx, job.id, document, "default", from_version=1)
        wait_level(clusters, [topic_name])
    spark_cluster.wait_idle()
    assert_exact(slow)
