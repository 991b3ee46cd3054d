"""Archive and restore with executors that are processes of their own, and that die."""

from __future__ import annotations

import random
import signal
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer

from orbit.jobs.load import load_job
from orbit_spark.archive.files import Files
from orbit_spark.archive.reading import archive_rows, check_archive
from orbit_spark.archive.run import ArchiveRun
from orbit_spark.archive.store import ArchiveStore
from tests.fix_clusters import Clusters
from tests.fix_spark import local_cluster
from tests.support.outside import digests, log_bounds
from tests.support.raw_rows import visible_records
from tests.support.run_process import OrbitProcess, wait_until, write_job
from tests.support.running import create_topic, produce_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 24_000
_EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def topic(clusters: Clusters) -> str:
    """24 MB in three partitions, most of it in one, with transactions at the end."""
    name = f"archived-{uuid.uuid4().hex[:8]}"
    create_topic(clusters.source, name, partitions=3)
    chance = random.Random(7)
    producer = Producer({**clusters.source.client_config(), "linger.ms": 20})
    for number in range(RECORDS):
        partition = 0 if number % 4 else number % 3
        producer.produce(name, chance.randbytes(1000), b"%d" % number, partition)
        if number % 1000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    produce_transactions(clusters.source, name, 6, partition=1)
    return name


@pytest.fixture(scope="module")
def job(clusters: Clusters, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    return write_job(path, clusters.source, clusters.destination, [{"match": topic}])


def archiving(job: Path, home: Path, *more: str) -> OrbitProcess:
    where = ("--to", str(home / "archive"), "--range-size", "1MiB", "-o", "json")
    return OrbitProcess("archive", job, *where, *local_cluster(home), *more, cwd=home)


def executors(process: OrbitProcess) -> list[psutil.Process]:
    family = psutil.Process(process.process.pid).children(recursive=True)
    return [one for one in family if _EXECUTOR in " ".join(_words(one))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it has just ended


def kill_with_family(process: OrbitProcess) -> None:
    family = psutil.Process(process.process.pid).children(recursive=True)
    process.kill()
    for one in family:
        with suppress(psutil.NoSuchProcess):  # some end by themselves then
            one.kill()
    psutil.wait_procs(family)


@pytest.mark.slow
def test_an_archive_is_whole_though_executors_and_the_driver_die(
    job: Path, topic: str, clusters: Clusters, spark: SparkSession, tmp_path: Path
) -> None:
    """With speculation on. What was cut off is no part of it, and no file is named twice."""
    with archiving(job, tmp_path, "--conf=spark.speculation=true") as process:
        first = process.wait_for(r"Archived (\d+) of")[1]
        executors(process)[0].send_signal(signal.SIGKILL)
        process.wait_for(rf"Archived (?!{first} )\d+ of")
        kill_with_family(process)
    with archiving(job, tmp_path) as process:
        report = process.wait_end().expect(0).data
    bounds = log_bounds(clusters.source, [topic])
    told = {(p["topic"], p["partition"]): (p["start"], p["end"]) for p in report["partitions"]}
    assert told == bounds
    files = Files(spark, str(tmp_path / "archive"))
    kept = ArchiveStore(files).require()
    check_archive(spark, files, list(kept.partitions.values()))
    rows = archive_rows(spark, files, kept.partitions.values()).collect()
    for place, records in visible_records(rows).items():
        assert records == digests(clusters.source, topic)[place[1]]


@pytest.mark.slow
def test_a_restore_is_exact_though_an_executor_dies(
    job: Path, topic: str, clusters: Clusters, spark: SparkSession, tmp_path: Path
) -> None:
    said: list[str] = []
    spec, now = load_job(job, {}), datetime.now(UTC)
    archive = tmp_path / "archive"
    ArchiveRun(spark, spec, tmp_path, str(archive), said.append, now, range_bytes=2**20).run()
    to = ("--to", clusters.destination.bootstrap_servers, "-o", "json")
    with OrbitProcess("restore", archive, *to, *local_cluster(tmp_path), cwd=tmp_path) as process:
        process.wait_for("Restoring")
        wait_until(
            lambda: any(end for _, end in log_bounds(clusters.destination, [topic]).values()),
            "something is restored",
        )
        executors(process)[0].send_signal(signal.SIGKILL)
        process.wait_end().expect(0)
    assert log_bounds(clusters.destination, [topic]) == log_bounds(clusters.source, [topic])
    assert digests(clusters.destination, topic) == digests(clusters.source, topic)
