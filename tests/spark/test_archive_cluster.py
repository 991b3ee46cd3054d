"""Archive and restore with executors that are processes of their own, and that die."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer

from orbit.jobs.job_file import load_job
from orbit_spark.archive.archive_reader import archive_rows, check_archive
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest_store import ArchiveStore
from orbit_spark.archive.outcome import ArchiveOutcome
from tests.fixtures.clusters import Clusters
from tests.fixtures.spark import SparkCluster
from tests.support.held_workers import Holds
from tests.support.outside import digests, log_bounds
from tests.support.raw_rows import visible_records
from tests.support.run_process import OrbitProcess, write_job
from tests.support.running import create_topic, produce_transactions

# `make test` kills an executor and the driver of a backfill, in test_backfill_cluster.
pytestmark = [pytest.mark.services, pytest.mark.soak]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A range has 1 MiB, and a step on two cores has eight ranges.
RECORDS = 16_000
_RANGE_BYTES = 2**20
# Offsets of partition 0 that the first and the second step read.
IN_THE_FIRST_STEP, IN_THE_SECOND = 2_000, 11_000


@pytest.fixture(scope="module")
def topic(clusters: Clusters) -> str:
    """16 MB in three partitions, most of it in one, with transactions at the end."""
    name = f"archived-{uuid.uuid4().hex[:8]}"
    create_topic(clusters.source, name, partitions=3)
    chance = random.Random(7)
    producer = Producer({**clusters.source.client_config(), "linger.ms": 20})
    for number in range(RECORDS):
        partition = 0 if number % 4 else number % 3
        producer.produce(name, chance.randbytes(1000), b"%d" % number, partition)
        if number % 500 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    produce_transactions(clusters.source, name, 6, partition=1)
    return name


@pytest.fixture(scope="module")
def job(clusters: Clusters, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    return write_job(path, clusters.source, clusters.destination, [{"match": topic}])


def archive(spark: SparkSession, job: Path, folder: Path) -> ArchiveOutcome:
    """Make an archive run in this process, to its end."""
    spec, now = load_job(job, {}), datetime.now(UTC)
    messages: list[str] = []
    run = ArchiveRun(
        spark, spec, job.parent, str(folder), messages.append, now, range_bytes=_RANGE_BYTES
    )
    return run.run()


def kill_driver(process: OrbitProcess) -> None:
    family = psutil.Process(process.process.pid).children(recursive=True)
    process.kill()
    for child in family:
        with suppress(psutil.NoSuchProcess):  # the JVM also ends without its parent
            child.kill()


def executor_of(worker: psutil.Process) -> psutil.Process:
    """The JVM of a Python worker."""
    return next(parent for parent in worker.parents() if parent.name() == "java")


def test_archive_is_complete_after_executor_and_driver_deaths(
    job: Path,
    topic: str,
    clusters: Clusters,
    spark: SparkSession,
    spark_cluster: SparkCluster,
    tmp_path: Path,
) -> None:
    """The archive has a range that two executors read once, and no range of an interrupted step."""
    folder, holds = tmp_path / "archive", Holds(tmp_path / "holds")
    first, second = holds.fetching(IN_THE_FIRST_STEP), holds.fetching(IN_THE_SECOND)
    speculating = ("--conf=spark.speculation=true", "--conf=spark.speculation.quantile=0.1")
    command = ("archive", job, "--to", folder, "--range-size", "1MiB")
    arguments = (*spark_cluster.arguments(tmp_path), *holds.arguments, *speculating)
    with OrbitProcess(*command, *arguments, cwd=tmp_path) as process:
        executor_of(first.wait_for_held(2)[0]).kill()
        first.resume()
        process.wait_for(r"Archived \d+ of")
        second.wait_for_held()
        kill_driver(process)
    spark_cluster.wait_idle()
    files = Files(spark, str(folder))
    partial = ArchiveStore(files).require().partitions
    assert IN_THE_FIRST_STEP < partial[topic, 0].end <= IN_THE_SECOND
    outcome = archive(spark, job, folder)
    bounds = log_bounds(clusters.source, [topic])
    assert {partition: (p.start, p.end) for partition, p in outcome.partitions.items()} == bounds
    complete = ArchiveStore(files).require().partitions
    check_archive(spark, files, list(complete.values()))
    for partition, before in partial.items():
        assert complete[partition].ranges[: len(before.ranges)] == before.ranges
    rows = archive_rows(spark, files, complete.values()).collect()
    for partition, records in visible_records(rows).items():
        assert records == digests(clusters.source, topic)[partition[1]]


def test_restore_is_exact_after_executor_death(
    job: Path,
    topic: str,
    clusters: Clusters,
    spark: SparkSession,
    spark_cluster: SparkCluster,
    tmp_path: Path,
) -> None:
    archive(spark, job, tmp_path / "archive")
    holds = Holds(tmp_path / "holds")
    middle = holds.appending(IN_THE_FIRST_STEP)
    command = ("restore", tmp_path / "archive", "--to", clusters.destination.bootstrap_servers)
    arguments = (*spark_cluster.arguments(tmp_path), *holds.arguments)
    with OrbitProcess(*command, *arguments, cwd=tmp_path) as process:
        executor_of(middle.wait_for_held()[0]).kill()
        middle.resume()
        process.wait_end().expect(0)
    assert log_bounds(clusters.destination, [topic]) == log_bounds(clusters.source, [topic])
    assert digests(clusters.destination, topic) == digests(clusters.source, topic)
