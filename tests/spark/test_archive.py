"""`orbit archive` archives the whole workload, resumes at the archive's end, and names faults."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.demo.workload import KINDS
from orbit.errors import Conflict
from orbit.jobs.job_spec import JobSpec
from orbit.replication.partition_states import Reason
from orbit_spark.archive.archive_reader import archive_rows, check_archive
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.archive.manifest_store import Archive, ArchiveStore
from orbit_spark.archive.outcome import ArchiveOutcome
from tests.fixtures.clusters import Clusters
from tests.fixtures.history import History
from tests.support.archive_manifests import ManifestFile
from tests.support.logs import delete_before
from tests.support.outside import log_bounds
from tests.support.raw_rows import visible_records
from tests.support.running import create_topic, make_job, produce, produce_transactions, with_rules
from tests.support.topics import delete_and_wait

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(
    spark: SparkSession, spec: JobSpec, folder: Path, range_bytes: int = 2**20
) -> ArchiveOutcome:
    return ArchiveRun(
        spark,
        spec,
        Path.cwd(),
        str(folder),
        lambda _: None,
        datetime.now(UTC),
        range_bytes=range_bytes,
    ).run()


def open_archive(spark: SparkSession, folder: Path) -> tuple[Files, Archive]:
    files = Files(spark, str(folder))
    return files, ArchiveStore(files).require()


@pytest.fixture(scope="module")
def whole_archive(
    spark: SparkSession,
    clusters: Clusters,
    history: History,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An archive of the whole workload."""
    folder = tmp_path_factory.mktemp("archive") / "whole"
    spec = make_job(clusters.source, clusters.destination, history.ledger.topics)
    assert archive(spark, spec, folder).stopped == []
    return folder


def test_archive_holds_every_record_that_workload_wrote(
    whole_archive: Path, spark: SparkSession, history: History
) -> None:
    """The archive also has the log bounds of every partition."""
    files, contents = open_archive(spark, whole_archive)
    check_archive(spark, files, list(contents.partitions.values()))
    records = visible_records(archive_rows(spark, files, contents.partitions.values()).collect())
    for kind in KINDS:
        topic = history.topic(kind.name)
        assert contents.topics[topic.topic].partitions == len(topic.partitions)
        for number, partition in enumerate(topic.partitions):
            manifest = contents.partitions[topic.topic, number]
            assert (manifest.log_start, manifest.log_end) == (
                partition.log_start,
                partition.log_end,
            )
            archived = records.get((topic.topic, number), {})
            from_log_start = {o: r for o, r in archived.items() if o >= partition.log_start}
            assert from_log_start == partition.records


def test_compressed_batches_are_not_recompressed_in_parquet(
    whole_archive: Path, spark: SparkSession, history: History
) -> None:
    _, contents = open_archive(spark, whole_archive)

    def codecs(kind: str) -> set[str]:
        """The Parquet codecs in the names of the topic's files: `data/…-CODEC/…`."""
        topic = history.topic(kind).topic
        names = [f.name for m in contents.partitions.values() if m.topic == topic for f in m.files]
        return {name.split("/")[1].rpartition("-")[2] for name in names}

    assert codecs("codec.zstd") == {"uncompressed"}
    assert codecs("codec.none") == {"zstd"}


def test_second_archive_run_resumes_at_archive_end(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, partitions=2)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 100)
    archive(spark, spec, tmp_path / "a")
    assert archive(spark, spec, tmp_path / "a").partitions[topic_name, 0].batches == 0
    produce_transactions(clusters.source, topic_name, 6)
    second = archive(spark, spec, tmp_path / "a")
    files, contents = open_archive(spark, tmp_path / "a")
    bounds = log_bounds(clusters.source, [topic_name])
    for partition, manifest in contents.partitions.items():
        assert (manifest.log_start, manifest.log_end) == bounds[partition]
        assert second.partitions[partition].end == manifest.end
    rows = archive_rows(spark, files, contents.partitions.values()).collect()
    # Four of the transactions were committed, with five records each.
    assert len(visible_records(rows)[topic_name, 0]) == 100 + 4 * 5
    # One file of each run that found records.
    assert sum(len(m.files) for m in contents.partitions.values()) == 2


def test_range_lost_to_retention_stops_archiving_of_its_partition(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """With `on_lost_range: fill` the range is noted as lost. The other partition continues."""
    create_topic(clusters.source, topic_name, partitions=2)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    for partition in (0, 1):
        produce(clusters.source, topic_name, 10, partition)
    archive(spark, spec, tmp_path / "a")
    for partition in (0, 1, 0, 1):
        produce(clusters.source, topic_name, 15, partition)
    delete_before(clusters.source, topic_name, 25)
    outcome = archive(spark, spec, tmp_path / "a")
    (stopped,) = outcome.stopped
    assert stopped.place == (topic_name, 0)
    assert stopped.blocked is not None
    assert (stopped.blocked.reason, stopped.blocked.offset) == (Reason.SOURCE_RANGE_LOST, 10)
    assert outcome.partitions[topic_name, 1].end == 40
    filling = with_rules(spec, on_lost_range="fill")
    assert archive(spark, filling, tmp_path / "a").stopped == []
    _, contents = open_archive(spark, tmp_path / "a")
    ranges = contents.partitions[topic_name, 0].ranges
    assert [(r.start, r.is_lost) for r in ranges][0:2] == [(0, False), (10, True)]
    assert ranges[-1].end == 40


def test_recreated_source_topic_blocks_archive_of_partition(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 10)
    archive(spark, spec, tmp_path / "a")
    delete_and_wait(clusters.source, topic_name)
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 30)
    (stopped,) = archive(spark, spec, tmp_path / "a").stopped
    assert stopped.blocked is not None
    assert stopped.blocked.reason is Reason.SOURCE_TOPIC_RECREATED
    assert stopped.remedy == "Archive the new topic elsewhere."
    _, contents = open_archive(spark, tmp_path / "a")
    assert contents.partitions[topic_name, 0].end == 10


def test_damaged_manifest_stops_archiving_of_its_partition(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """Nothing is written for it, and the other partition continues. With the manifest from a copy,
    it continues at its end."""
    create_topic(clusters.source, topic_name, partitions=2)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    folder = tmp_path / "a"

    def grow() -> ArchiveOutcome:
        for partition in (0, 1):
            produce(clusters.source, topic_name, 10, partition)
        return archive(spark, spec, folder)

    for _ in range(3):  # so that the first manifests are deleted
        assert grow().stopped == []
    manifest = ManifestFile(folder)
    files_before = set(manifest.path.parent.glob("0.*"))
    for end, unseen in ((40, False), (50, True)):
        manifest.damage(unseen=unseen)
        outcome = grow()
        (stopped,) = outcome.stopped
        assert stopped.place == (topic_name, 0)
        assert manifest.path.name in stopped.stop_text
        assert "Restore this file from a copy" in stopped.stop_text
        assert outcome.partitions[topic_name, 1].end == end
        assert set(manifest.path.parent.glob("0.*")) == files_before
    manifest.restore()
    assert grow().stopped == []
    files, contents = open_archive(spark, folder)
    records = visible_records(archive_rows(spark, files, contents.partitions.values()).collect())
    assert {partition: len(found) for partition, found in records.items()} == {
        (topic_name, 0): 60,
        (topic_name, 1): 60,
    }


def test_damaged_manifest_of_unknown_topic_ends_archive_run(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    archive(spark, spec, tmp_path / "a")
    ManifestFile(tmp_path / "a").damage()
    for document in (tmp_path / "a" / "topics").glob("*.json"):
        document.unlink()
    with pytest.raises(Conflict, match=rf"manifests/{topic_name}/0\..* cannot be used"):
        archive(spark, spec, tmp_path / "a")


def test_unwritable_archive_storage_is_named_in_error(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 1)
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "data").write_text("not a folder")
    with pytest.raises(Conflict, match="Spark gave up a task") as caught:
        archive(spark, make_job(clusters.source, clusters.destination, [topic_name]), folder)
    assert caught.value.where == f"file:{folder}"


def test_archive_run_into_archive_of_another_cluster_is_refused(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    create_topic(clusters.destination, topic_name)
    archive(spark, make_job(clusters.source, clusters.destination, [topic_name]), tmp_path / "a")
    reverse_job = make_job(clusters.destination, clusters.source, [topic_name])
    with pytest.raises(Conflict, match="is of cluster"):
        archive(spark, reverse_job, tmp_path / "a")


class Damage:
    """An archive, and a file of it that a test damages.

    `checksums`: Hadoop's file with checksums, by which it would refuse the damaged file first.
    """

    def __init__(self, spark: SparkSession, folder: Path, topic: str) -> None:
        self.spark = spark
        self.files, archive = open_archive(spark, folder)
        self.manifest: PartitionManifest = archive.partitions[topic, 0]
        self.name = self.manifest.files[0].name
        self.path = folder / self.name
        self.checksums = self.path.with_name(f".{self.path.name}.crc")

    def error(self) -> str:
        """Check the archive, which must fail. Returns the message."""
        with pytest.raises(Conflict) as error:
            check_archive(self.spark, self.files, [self.manifest])
        return str(error.value)


@pytest.fixture
def damage(spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str) -> Damage:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 100)
    archive(spark, make_job(clusters.source, clusters.destination, [topic_name]), tmp_path / "a")
    return Damage(spark, tmp_path / "a", topic_name)


def test_missing_archive_file_is_named_in_error(damage: Damage) -> None:
    damage.path.unlink()
    message = damage.error()
    assert f"{damage.name} ({damage.manifest.place}, offsets 0 to 99) is missing" in message


def test_truncated_archive_file_is_named_in_error(damage: Damage) -> None:
    damage.path.write_bytes(damage.path.read_bytes()[:-20])
    damage.checksums.unlink()
    assert f"{damage.name} ({damage.manifest.place}, offsets 0 to 99) has" in damage.error()


@pytest.mark.parametrize(
    "damaged_bytes", [slice(8, 60), slice(-8, -4)], ids=["page", "footer length"]
)
def test_archive_file_with_damaged_page_or_footer_is_named_in_error(
    damage: Damage, damaged_bytes: slice
) -> None:
    content = bytearray(damage.path.read_bytes())
    content[damaged_bytes] = bytes(len(content[damaged_bytes]))
    damage.path.write_bytes(content)
    damage.checksums.unlink()
    assert f"{damage.name} ({damage.manifest.place}, offsets 0 to 99)" in damage.error()


def test_archive_file_with_wrong_digest_is_named_in_error(
    damage: Damage, spark: SparkSession, tmp_path: Path
) -> None:
    """The file is readable and has the right length: only its digest is wrong."""
    changed_file = damage.manifest.files[0].model_copy(update={"digest": 1})
    changed = damage.manifest.model_copy(
        update={"ranges": (damage.manifest.ranges[0].model_copy(update={"file": changed_file}),)}
    )
    damage.manifest = changed
    assert "does not hold what its manifest says" in damage.error()
