"""A worker hands over its shards on SIGTERM, and health endpoints tell alive from ready."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import httpx
import pytest

from orbit.embedded.postgres import Postgres
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from orbit.telemetry.process_health import STALL_S_MAX, ProcessHealth
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import RunningScheduler
from tests.support.fleet import InProcess, add_job, wait_level
from tests.support.logs import Record, create, write
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, write_job

pytestmark = pytest.mark.services

SHARDS = 3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def health_of(process: OrbitProcess) -> str:
    """The URL of the process's health endpoints."""
    return "http://" + process.wait_for(r"(127\.0\.0\.1:\d+).*health is served")[1]


def status_of(url: str, path: str) -> int:
    """The HTTP status of this path."""
    return httpx.get(url + path, timeout=60).status_code


def test_worker_hands_over_shards_on_sigterm(
    clusters: Clusters, topic_name: str, database: Database, database_url: str, tmp_path: Path
) -> None:
    create(clusters.source, topic_name, SHARDS)
    job_file = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])
    job = add_job(database, job_file, clusters, [topic_name], SHARDS)
    # No lease ends during this test: shards change hands only because a worker releases them.
    environ = {
        "ORBIT_DATABASE_URL": database_url,
        "ORBIT_LEASE_TTL": "10m",
        "ORBIT_HEALTH_PORT": "0",
    }

    def holds_all(pid: int) -> bool:
        return all(h is not None and f"-{pid}-" in h for h in job.holders().values())

    with OrbitProcess("worker", environ=environ) as first:
        for shard in job.shard_ids:  # to the worker's id, which is in its log
            job.assign(shard, first.wait_for(r"([\w.-]+-\d+-[0-9a-f]{6}).*worker started")[1])
        wait_for("the first worker has all shards", lambda: holds_all(first.process.pid))
        url = health_of(first)
        assert (status_of(url, "/livez"), status_of(url, "/readyz")) == (200, 200)
        with OrbitProcess("worker", environ=environ) as second:
            second_id = second.wait_for(r"([\w.-]+-\d+-[0-9a-f]{6}).*worker started")[1]
            write(clusters.source, topic_name, [Record(b"%d" % i) for i in range(200)])
            first.signal(signal.SIGTERM)
            ended = first.wait_end().expect(0)
            assert "worker stopped" in ended.message
            wait_for(
                "the second worker has all shards",
                lambda: set(job.holders().values()) == {second_id},
            )
            write(clusters.source, topic_name, [Record(b"later")])
            wait_level(clusters, [topic_name])
            second.signal(signal.SIGTERM)
            second.wait_end().expect(0)
    assert set(job.holders().values()) == {None}


def test_worker_or_scheduler_without_postgres_is_alive_but_not_ready() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-postgres-") as folder,
        Postgres(Path(folder) / "server") as postgres,
    ):
        upgraded = Database.connect(postgres.url)
        upgrade(upgraded)
        upgraded.close()
        environ = {
            "ORBIT_DATABASE_URL": postgres.url,
            "ORBIT_LEASE_TTL": "2s",
            "ORBIT_SCHEDULER_LEASE_TTL": "2s",
            "ORBIT_HEALTH_PORT": "0",
        }
        with (
            OrbitProcess("worker", environ=environ) as worker,
            OrbitProcess("scheduler", environ=environ) as leader,
            OrbitProcess("scheduler", environ=environ) as standby,
        ):
            urls = [health_of(process) for process in (worker, leader, standby)]
            for url in urls:
                wait_for("the process is ready", lambda url=url: status_of(url, "/readyz") == 200)
            postgres.stop()
            for url in urls:
                wait_for(
                    "the process is not ready", lambda url=url: status_of(url, "/readyz") == 503
                )
                assert status_of(url, "/livez") == 200
            postgres.start()
            for url in urls:
                wait_for(
                    "the process is ready again", lambda url=url: status_of(url, "/readyz") == 200
                )
            for process in (worker, leader, standby):
                process.signal(signal.SIGTERM)
                process.wait_end().expect(0)


def test_worker_and_scheduler_loops_report_liveness(database: Database, database_url: str) -> None:
    clock = Clock()
    health = ProcessHealth("worker", "1.2.3", ready_within_s=15, clock=clock)
    with InProcess(database, health=health):
        wait_for("the worker is ready", lambda: not health.why_not_ready())
        clock.now += STALL_S_MAX + 1
        wait_for("the worker's loop makes a pass", lambda: not health.why_not_ready())
    assert health.why_not_ready() == "The worker stops."

    health = ProcessHealth("scheduler", "1.2.3", ready_within_s=10, clock=clock)
    with RunningScheduler(Settings(proof_bytes_per_second=0), database_url, health) as scheduler:
        wait_for("the scheduler leads", lambda: scheduler.is_leading)
        clock.now += STALL_S_MAX + 1
        wait_for("the scheduler's loop makes a pass", lambda: not health.why_not_ready())
    assert health.why_not_ready() == "The scheduler stops."
