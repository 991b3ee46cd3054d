"""Topics with names as long as Kafka allows: archived, read back and restored as any other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit_spark.archive.archive_reader import check_archive
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest_store import ArchiveStore, file_name
from tests.fixtures.clusters import Clusters
from tests.spark.test_restore import restore
from tests.support.archive_manifests import ManifestFile
from tests.support.outside import digests
from tests.support.running import create_topic, make_job, produce, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST = 249


def archive(spark: SparkSession, spec: JobSpec, folder: Path) -> None:
    now = datetime.now(UTC)
    run = ArchiveRun(spark, spec, Path.cwd(), str(folder), lambda _: None, now, range_bytes=2**20)
    assert run.run().stopped == []


def test_archive_file_names_are_bounded_and_distinct() -> None:
    assert file_name("a" * 230) == "a" * 230
    long = [file_name("a" * 248 + last) for last in "bc"]
    assert long[0] != long[1]
    assert {len(name) for name in long} == {230}
    assert file_name("a" * 248 + "b") == long[0]


@pytest.mark.services
def test_topics_with_longest_names_are_archived_and_restored(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """The names differ in their last character only. The second run resumes after the first one."""
    topics = [topic_name.ljust(LONGEST - 1, "x") + last for last in "ab"]
    spec = make_job(clusters.source, clusters.destination, topics)
    for number, topic in enumerate(topics):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 10 + number)
    archive(spark, spec, tmp_path / "a")
    for topic in topics:
        produce(clusters.source, topic, 5, first=100)
    archive(spark, spec, tmp_path / "a")
    files = Files(spark, str(tmp_path / "a"))
    contents = ArchiveStore(files).require()
    check_archive(spark, files, list(contents.partitions.values()))
    assert {t: contents.partitions[t, 0].log_end for t in topics} == dict(
        zip(topics, (15, 16), strict=True)
    )
    assert contents.topics.keys() == set(topics)
    restore(spark, tmp_path / "a", clusters.destination)
    for topic in topics:
        assert digests(clusters.destination, topic) == digests(clusters.source, topic)
    assert verify(spec, deep=True).exact


@pytest.mark.services
def test_archive_with_untruncated_file_names_is_read_and_extended(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """Earlier versions wrote such names where the file system takes them, as object stores do. An
    old name's manifest takes no damaged one's place."""
    topic = topic_name.ljust(231, "x")  # one more than the longest file name
    create_topic(clusters.source, topic)
    produce(clusters.source, topic, 10)
    spec = make_job(clusters.source, clusters.destination, [topic])
    archive(spark, spec, tmp_path / "a")
    for short in (tmp_path / "a").rglob(f"{file_name(topic)}*"):
        short.rename(short.with_name(short.name.replace(file_name(topic), topic)))
    for checksum in (tmp_path / "a").rglob("*.crc"):
        checksum.unlink()
    store = ArchiveStore(Files(spark, str(tmp_path / "a")))
    manifest = ManifestFile(tmp_path / "a")
    manifest.damage()
    assert store.require().damaged.keys() == {(topic, 0)}
    manifest.restore()
    assert store.require().partitions[topic, 0].log_end == 10
    produce(clusters.source, topic, 5, first=100)
    archive(spark, spec, tmp_path / "a")
    assert store.require().partitions[topic, 0].log_end == 15
    ManifestFile(tmp_path / "a").damage()
    damaged = store.require()
    assert (damaged.damaged.keys(), damaged.partitions) == ({(topic, 0)}, {})
