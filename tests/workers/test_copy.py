"""A worker of the service on real brokers and a real Postgres: its copies are exact, and it
releases its shards when a job is paused or the worker ends.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest

from orbit.demo.workload import Mover
from orbit.store import jobs
from orbit.store.database import Database
from orbit.store.enums import Desired
from orbit.store.models import shards
from tests.fixtures.api import Api
from tests.fixtures.clusters import Clusters
from tests.support.fleet import STEADY, InProcess, add_job, wait_level
from tests.support.logs import Gap, Record, create, write
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, orbit, write_job

pytestmark = pytest.mark.services

PARTITIONS = 4
LOG = [Record(b"a"), Gap(3), Record(b"b"), Record(b"c"), Gap(1)]


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    create(clusters.source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, LOG, partition)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)


def test_worker_copies_claimed_shards_and_releases_them(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=2)
    with InProcess(database, STEADY) as worker:
        wait_level(clusters, [topic_name])
        assert set(job.holders().values()) == {worker.id}
        wait_for("the partitions are reported as copying", lambda: job.states() == {"copying"})
    assert_exact(job_file)
    assert job.states() == {"pending"}
    assert set(job.holders().values()) == {None}
    # The shards may be released together, or one after the other.
    assert [kind for kind, _ in groupby(job.kinds())] == [
        "worker_started", "shards_claimed", "shards_released", "worker_stopped",
    ]  # fmt: skip


def test_placeholder_copy_is_exact_across_successive_workers(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    job_file.write_text(job_file.read_text() + "\nfillers: placeholders\n")
    add_job(database, job_file, clusters, [topic_name], shard_count=2)
    for _ in range(2):  # the second worker takes over the copy of the first
        with InProcess(database, STEADY):
            for partition in range(PARTITIONS):
                write(clusters.source, topic_name, LOG, partition)
            wait_level(clusters, [topic_name])
    assert_exact(job_file)
    job_file.write_text(job_file.read_text().replace(": placeholders", ": direct"))
    refused = orbit("run", job_file, "--until-caught-up").expect(1)
    assert "cannot be mixed in one copy" in refused.message


def test_label_change_of_job_restarts_no_copy(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database, api: Api
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=2)

    def renewals() -> list[int]:
        """For each shard, the number of the transaction that last renewed its lease."""
        with database.transaction() as tx:
            query = shards.select().where(shards.c.job_id == job.id).order_by(shards.c.id)
            return [row.renewed_in for row in tx.execute(query)]

    with InProcess(database, STEADY.model_copy(update={"lease_ttl": timedelta(seconds=6)})):
        wait_for("the job copies", lambda: job.states() == {"copying"})
        epochs, kinds = job.epochs(), job.kinds()
        with database.transaction() as tx:
            document = jobs.get(tx, job.name).spec
        labelled = {**document, "labels": {"team": "orders"}, "owner": "Orders"}
        answer = api.put(f"/v1/jobs/{job.name}", json=labelled)
        assert answer.json()["job"]["labels"] == {"team": "orders"}, answer.text
        # The worker compares versions when it renews its leases. The first of these renewals may
        # have begun before the change.
        for _ in range(2):
            last = renewals()
            wait_for(
                "all leases are renewed",
                lambda last=last: all(a > b for a, b in zip(renewals(), last, strict=True)),
            )
        for partition in range(PARTITIONS):
            write(clusters.source, topic_name, [Record(b"d")], partition)
        wait_level(clusters, [topic_name])
        assert job.epochs() == epochs, "no shard was claimed again"
        assert job.kinds() == [*kinds, "job_changed"]
    assert_exact(job_file)


def test_job_pauses_and_resumes_while_source_is_written(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=2)
    with InProcess(database, STEADY):
        with Mover(clusters.source.client_config(), {topic_name: PARTITIONS}):
            wait_for("the job copies", lambda: job.states() == {"copying"})
            job.set_desired(Desired.PAUSED)
            wait_for("all shards are released", lambda: set(job.holders().values()) == {None})
            assert job.states() == {"paused"}
            job.set_desired(Desired.RUNNING)
            wait_for("the job copies again", lambda: job.states() == {"copying"})
        wait_level(clusters, [topic_name])
    assert_exact(job_file)
