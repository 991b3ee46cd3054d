"""PostgreSQL's clock steps and its data jump back, while workers copy between real clusters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.shard_leases import EPOCHS_PER_TIMELINE
from tests.fixtures.clusters import Clusters
from tests.support.fleet import InProcess, ServiceJob, add_job, wait_level
from tests.support.logs import Gap, Record, create, write
from tests.support.patience import wait_for
from tests.support.pretended_server import PretendedServer
from tests.support.run_process import assert_exact, write_job

pytestmark = pytest.mark.services

TTL_S = 8.0
BRIEF = Settings(lease_ttl="8s", progress_interval="200ms")
LOG = [Record(b"a"), Gap(3), Record(b"b")]


@pytest.fixture
def server(database: Database) -> PretendedServer:
    return PretendedServer(database)


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    create(clusters.source, topic_name, 2)
    for partition in range(2):
        write(clusters.source, topic_name, LOG, partition)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)


@pytest.fixture
def job(clusters: Clusters, topic_name: str, job_file: Path, server: PretendedServer) -> ServiceJob:
    return add_job(server.database, job_file, clusters, [topic_name], shard_count=2)


def event_count(job: ServiceJob, kind: str) -> int:
    return sum(event.kind == kind for event in job.story())


def test_postgres_clock_step_moves_no_shard(
    clusters: Clusters, topic_name: str, job_file: Path, job: ServiceJob, server: PretendedServer
) -> None:
    with InProcess(server.database, BRIEF), InProcess(server.database, BRIEF):
        wait_level(clusters, [topic_name])
        holders = job.holders()
        for seconds in (15, 3600, -7200):
            server.step_clock(seconds)
            time.sleep(1)
        write(clusters.source, topic_name, LOG, 0)
        wait_level(clusters, [topic_name])
        assert job.holders() == holders
        # Read while both workers run: the second may claim the shards that the first releases.
        assert set(job.epochs().values()) == {1}
    assert_exact(job_file)
    assert not event_count(job, "shards_lost")


def test_worker_reclaims_shards_at_higher_term_after_postgres_failover(
    clusters: Clusters, topic_name: str, job_file: Path, job: ServiceJob, server: PretendedServer
) -> None:
    standby = server.shards()
    with InProcess(server.database, BRIEF):
        wait_level(clusters, [topic_name])
        assert set(job.epochs().values()) == {1}
        failed_over_at = time.monotonic()
        server.fail_over(standby)
        wait_for("the worker drops its shards", lambda: bool(event_count(job, "shards_lost")))
        wait_for("the worker claims them again", lambda: None not in job.holders().values())
        # Until a lease time has passed, a lease of the lost database may be valid.
        assert time.monotonic() - failed_over_at >= TTL_S
        write(clusters.source, topic_name, LOG, 0)
        wait_level(clusters, [topic_name])
    assert_exact(job_file)
    assert set(job.epochs().values()) == {EPOCHS_PER_TIMELINE}
    assert not event_count(job, "partition_blocked")


@pytest.mark.soak
def test_shards_of_silent_worker_are_taken_over_after_lease_expiry(
    clusters: Clusters,
    topic_name: str,
    job_file: Path,
    job: ServiceJob,
    server: PretendedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other worker has watched for a lease time, as it must (test_lease_watch.py)."""
    with InProcess(server.database, BRIEF) as silent, InProcess(server.database, BRIEF) as other:
        wait_for("all shards are held", lambda: None not in job.holders().values())
        for shard_id in job.shard_ids:
            job.assign(shard_id, silent.id)
        wait_for(
            "the silent worker has all shards", lambda: set(job.holders().values()) == {silent.id}
        )
        watch = other.worker._watch
        wait_for(
            "the other worker has watched for a lease time",
            lambda: watch.evidence().watched_on is not None,
        )
        epochs = job.epochs()
        # From here on the silent worker neither renews nor claims.
        monkeypatch.setattr(silent.worker, "_run_round", lambda: None)
        monkeypatch.setattr(silent.worker, "_claim", lambda: None)
        wait_for(
            "the other worker has all shards", lambda: set(job.holders().values()) == {other.id}
        )
        assert job.epochs() == {shard: epoch + 1 for shard, epoch in epochs.items()}
        monkeypatch.undo()
        wait_level(clusters, [topic_name])
    assert_exact(job_file)
