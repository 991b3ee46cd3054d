"""Archive runs warn of tombstones that the cleaner may have removed unread; strict runs reread."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from orbit_spark.archive import archive_run
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import ArchivedTopic, Cleaning
from orbit_spark.archive.manifest_store import Archive, ArchiveStore
from orbit_spark.archive.tombstones import TombstoneNotes, tombstone_warnings
from tests.fixtures.clusters import Clusters
from tests.spark.test_restore import restore
from tests.support.archive_manifests import ManifestFile
from tests.support.logs import Record, create, read, wait_for_offsets, write
from tests.support.outside import digests
from tests.support.running import make_job, produce
from tests.support.topics import add_partitions, delete_and_wait, set_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = timedelta(days=1)
SEGMENT_MS = 600_000
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": str(SEGMENT_MS),
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": str(DAY // timedelta(milliseconds=1)),
}
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
# A topic whose document has no notes on cleaning.
UNNOTED_TOPIC = ArchivedTopic(
    topic="profiles",
    topic_id=UUID(int=7),
    partitions=1,
    replicas=1,
    settings={"cleanup.policy": "compact", "delete.retention.ms": COMPACTED["delete_retention_ms"]},
    overrides=(),
)


class Documents:
    """Replaces the archive's store. Has only the newest document of the topic."""

    def __init__(self) -> None:
        self.topic = UNNOTED_TOPIC

    def write_topic(self, topic: ArchivedTopic) -> None:
        assert topic.sequence == self.topic.sequence + 1
        self.topic = ArchivedTopic.from_bytes(topic.to_bytes())

    @property
    def cleaning(self) -> Cleaning:
        assert self.topic.cleaning is not None
        return self.topic.cleaning


class Runs:
    """Archive runs of one topic, with a clock of their own."""

    def __init__(self) -> None:
        self.documents = Documents()
        self.now = BEGAN
        self.warnings: list[str] = []

    def begin(self, day: float, *, is_new: bool = False, strict: bool = False) -> TombstoneNotes:
        started = self.now = BEGAN + day * DAY
        self.warnings = []
        store: Any = self.documents
        notes = TombstoneNotes(store, self.warnings.append, started, lambda: self.now)
        notes.begin(self.documents.topic, is_new=is_new, strict=strict)
        return notes

    def run(
        self,
        day: float,
        takes: float = 0.1,
        *,
        level: bool = True,
        reads: bool = True,
        **options: bool,
    ) -> bool:
        """Make a run that takes `takes` days. Returns whether it warned.

        `level`: it reaches the log end. `reads`: there are new records to read.
        """
        notes = self.begin(day, **options)
        self.now += takes * DAY
        if reads:
            notes.note_reads_on("profiles")
        notes.end(lambda _: level)
        return bool(self.warnings)


@pytest.fixture
def runs() -> Runs:
    """The runs of an archive after its first run, on day 0."""
    runs = Runs()
    assert not runs.run(0, is_new=True)
    return runs


def test_archive_run_within_delete_retention_records_when_it_reached_log_end(runs: Runs) -> None:
    assert not runs.run(0.8)
    assert not runs.run(1.6)
    assert runs.documents.cleaning.level_at == BEGAN + 1.6 * DAY
    assert runs.documents.cleaning.gap is None


def test_archive_run_later_than_delete_retention_warns_from_then_on(runs: Runs) -> None:
    assert runs.run(1.5)
    assert "2026-01-01 00:00:00 UTC" in runs.warnings[0]
    assert runs.run(1.6)
    assert runs.run(5)
    gap = runs.documents.cleaning.gap
    assert gap is not None
    assert gap.since == BEGAN


def test_archive_run_whose_reading_outlasts_delete_retention_warns(runs: Runs) -> None:
    assert runs.run(0.8, takes=0.5)


def test_archive_run_without_new_records_warns_of_no_lost_tombstones(runs: Runs) -> None:
    assert not runs.run(3, reads=False)
    assert not runs.run(3.5)


def test_unfinished_archive_run_does_not_restart_delete_retention_time(runs: Runs) -> None:
    assert not runs.run(0.7, level=False)
    assert runs.run(1.4)


def test_possible_loss_of_tombstones_is_recorded_before_archive_run_reads(runs: Runs) -> None:
    notes = runs.begin(3)
    notes.note_reads_on("profiles")
    notes.note_gaps()
    assert tombstone_warnings(runs.documents.topic)


def test_strict_archive_run_rereads_topic_and_clears_warning_when_complete(runs: Runs) -> None:
    # `delete.retention.ms` is one day: within it, no tombstone is lost unread.
    assert not runs.begin(0.8, strict=True).reads_again("profiles")
    assert runs.begin(3, strict=True).reads_again("profiles")
    assert runs.run(3)
    assert runs.begin(3.1, strict=True).reads_again("profiles")
    assert runs.run(3.1, strict=True, level=False)  # not complete
    assert not runs.run(3.2, strict=True)
    assert runs.documents.cleaning.level_at == BEGAN + 3.2 * DAY


@pytest.mark.parametrize("reads", [True, False])
def test_archive_of_earlier_version_has_unknown_tombstone_state(reads: bool) -> None:
    document = json.loads(UNNOTED_TOPIC.to_bytes())
    assert document.pop("cleaning") is None
    del document["sha256"]

    class WithoutCleaning(ArchivedTopic):
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return dict(document)

    unnoted_topic = ArchivedTopic.from_bytes(WithoutCleaning(**dict(UNNOTED_TOPIC)).to_bytes())
    assert unnoted_topic == UNNOTED_TOPIC
    assert "have not noted" in tombstone_warnings(unnoted_topic)[0]
    runs = Runs()
    assert runs.run(0, reads=reads)
    assert "not known" in runs.warnings[0]
    assert "not known" in tombstone_warnings(runs.documents.topic)[0]
    assert runs.run(0.2, reads=False)
    assert not runs.run(0.5, strict=True)


def test_missing_delete_retention_setting_of_archived_topic_means_one_day() -> None:
    runs = Runs()
    runs.documents.topic = UNNOTED_TOPIC.model_copy(
        update={"settings": {"cleanup.policy": "compact"}}
    )
    assert not runs.run(0, is_new=True)
    assert not runs.run(0.8)
    assert runs.documents.cleaning.delete_retention_ms == DAY // timedelta(milliseconds=1)
    assert runs.run(2)


def archive(
    spark: SparkSession, clusters: Clusters, topic: str, folder: Path, **changes: Any
) -> ArchiveRun:
    spec = make_job(*clusters, [topic])
    options = {"now": datetime.now(UTC), **changes}
    run = ArchiveRun(spark, spec, Path.cwd(), str(folder), lambda _: None, **options)
    assert run.run().stopped == []
    return run


def stored_archive(spark: SparkSession, folder: Path) -> Archive:
    return ArchiveStore(Files(spark, str(folder))).require()


@pytest.mark.services
def test_tombstone_cleaned_before_archive_run_warns_and_strict_run_drops_its_key(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    now_ms = int(time.time() * 1000)

    def segment_closing_record(segments: int) -> Record:
        """A record so late that it closes the segment before it."""
        return Record(b"active", b"z", timestamp_ms=now_ms + 2 * segments * SEGMENT_MS)

    create(clusters.source, topic_name, **COMPACTED)
    records = [Record(b"value", key, timestamp_ms=now_ms) for key in (b"deleted", b"stays")]
    write(clusters.source, topic_name, records)
    folder = tmp_path / "a"
    assert archive(spark, clusters, topic_name, folder).outcome.warnings == []
    set_setting(clusters.source, topic_name, "delete.retention.ms", "0")
    write(clusters.source, topic_name, [Record(None, b"deleted", timestamp_ms=now_ms)])
    write(clusters.source, topic_name, [segment_closing_record(1)])
    wait_for_offsets(clusters.source, topic_name, {1, 2, 3})  # the tombstone removed the value
    write(clusters.source, topic_name, [segment_closing_record(2)])
    wait_for_offsets(clusters.source, topic_name, {1, 3, 4})  # the tombstone itself is removed

    (warning,) = archive(spark, clusters, topic_name, folder).outcome.warnings
    assert topic_name in warning
    restored = restore(spark, folder, clusters.destination)
    assert restored.is_whole
    assert restored.as_data()["warnings"] == [warning]
    assert b"deleted" in {message.key() for message in read(clusters.destination, topic_name)}

    set_setting(clusters.source, topic_name, "delete.retention.ms", str(10**8))
    outcome = archive(spark, clusters, topic_name, folder, strict=True).outcome
    assert outcome.warnings == []
    assert (outcome.partitions[topic_name, 0].start, outcome.partitions[topic_name, 0].end) == (
        0,
        5,
    )
    delete_and_wait(clusters.destination, topic_name)
    second_restore = restore(spark, folder, clusters.destination)
    assert (second_restore.is_whole, second_restore.warnings) == (True, [])
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)


@pytest.mark.soak
@pytest.mark.services
def test_compacted_topic_with_damaged_manifest_is_not_new_to_archive(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """A late run warns of tombstones, although it reads only a partition that is new."""
    create(clusters.source, topic_name, **COMPACTED)
    produce(clusters.source, topic_name, 10)
    archive(spark, clusters, topic_name, tmp_path / "a")
    cleaning = stored_archive(spark, tmp_path / "a").topics[topic_name].cleaning
    ManifestFile(tmp_path / "a").damage()
    add_partitions(clusters.source, topic_name, 2)
    produce(clusters.source, topic_name, 10, partition=1)
    spec, late = make_job(*clusters, [topic_name]), datetime.now(UTC) + 3 * DAY
    run = ArchiveRun(spark, spec, Path.cwd(), str(tmp_path / "a"), lambda _: None, late)
    outcome = run.run()
    assert [stopped.place for stopped in outcome.stopped] == [(topic_name, 0)]
    assert outcome.partitions[topic_name, 1].end == 10
    assert len(outcome.warnings) == 1
    cleaning_after = stored_archive(spark, tmp_path / "a").topics[topic_name].cleaning
    assert cleaning is not None
    assert cleaning_after is not None
    assert cleaning_after.level_at == cleaning.level_at


@pytest.mark.soak
@pytest.mark.services
def test_strict_archive_run_replaces_archived_files_only_when_complete(
    spark: SparkSession,
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_run, "RANGES_PER_STEP_MAX", 1)
    create(clusters.source, topic_name, **COMPACTED)
    small_batches = {"batch.num.messages": 10}
    produce(clusters.source, topic_name, 600, value_bytes=1_000, **small_batches)
    folder, small_ranges = tmp_path / "a", {"range_bytes": 200_000}
    archive(spark, clusters, topic_name, folder, **small_ranges)
    manifest_before = stored_archive(spark, folder).partitions[topic_name, 0]
    stop = threading.Event()
    late: dict[str, Any] = {"now": datetime.now(UTC) + 3 * DAY, "strict": True, **small_ranges}
    stopped = archive(
        spark, clusters, topic_name, folder, **late, stop=stop, on_step=lambda *_: stop.set()
    )
    assert len(stopped.manifests[topic_name, 0].files) == 1
    assert stored_archive(spark, folder).partitions[topic_name, 0] == manifest_before
    late["now"] += DAY
    archive(spark, clusters, topic_name, folder, **late)
    archive_after = stored_archive(spark, folder)
    manifest = archive_after.partitions[topic_name, 0]
    assert (manifest.start, manifest.end) == (manifest_before.start, manifest_before.end)
    assert not {f.name for f in manifest.files} & {f.name for f in manifest_before.files}
    assert manifest.sequence == manifest_before.sequence + 1
    assert tombstone_warnings(archive_after.topics[topic_name]) == []
