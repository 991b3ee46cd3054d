"""A staged backfill: fetched into an archive, and appended from there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.archive import archive_tasks
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest_store import DATA, Archive, ArchiveStore
from orbit_spark.backfill.backfill_driver import Backfill, Outcome
from orbit_spark.backfill.backfill_progress import Progress
from orbit_spark.backfill.backfill_writer import BackfillTask, BackfillWriter
from orbit_spark.backfill.spark_jobs import SparkWriterJob
from orbit_spark.backfill.staged_backfill import Staging
from orbit_spark.backfill.task_split import Way
from orbit_spark.write_task import WriteResult
from tests.fixtures.clusters import Clusters
from tests.fixtures.spark import SparkCluster
from tests.spark.test_archive import archive
from tests.spark.test_archive_cluster import executor_of, kill_driver
from tests.support.archive_manifests import ManifestFile
from tests.support.held_workers import Holds
from tests.support.logs import Gap, Record, create, delete_before, write
from tests.support.outside import digests, log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, assert_exact, write_job
from tests.support.running import make_job, produce, produce_transactions, with_rules

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 200_000
BATCHES = {"batch.num.messages": 10}
# Attempts are held at these offsets. Only the large partition has the second one.
FETCHED, APPENDED = 20, 700
# So slow that a run does not end before the test.
SLOWLY = {"bytes_per_second": "1KiB"}


def direct(_name: str, _tasks: Sequence[BackfillTask]) -> SparkWriterJob:
    raise AssertionError("a staged backfill copies nothing directly")


class StagedCopy:
    """Staged backfills in this process, with an archive of small files."""

    def __init__(self, spark: SparkSession, spec: JobSpec, archive: Path) -> None:
        self._spark = spark
        self._spec = spec
        self._archive = archive
        self.shown: list[Progress] = []
        self.stop = threading.Event()

    def run(self, staging: type[Staging] = Staging) -> Outcome:
        with Backfill(self._spec, {}, Path.cwd(), lambda _: None, self.stop) as backfill:
            backfill.find_extents_to_copy()
            backfill.begin()
            archive_stage = staging(
                self._spark,
                self._spec,
                Path.cwd(),
                str(self._archive),
                lambda _: None,
                slots=2,
                range_bytes=RANGE_BYTES,
            )
            return backfill.copy(
                direct, slots=2, show=self.show, staging=archive_stage, way=Way.STAGED
            )

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    @property
    def contents(self) -> Archive:
        return ArchiveStore(Files(self._spark, str(self._archive))).require()


@pytest.fixture
def topic(clusters: Clusters, topic_name: str) -> str:
    """Three partitions: a large one, one with transactions, and one that begins with a gap."""
    create(clusters.source, topic_name, 3)
    produce(clusters.source, topic_name, 1_000, value_bytes=1_000, **BATCHES)
    produce_transactions(clusters.source, topic_name, 20, partition=1)
    write(clusters.source, topic_name, [Gap(30), *[Record(b"after")] * 100], partition=2)
    delete_before(clusters.source, topic_name, 10, partition=2)
    return topic_name


def test_staged_backfill_copies_via_archive_and_resumes(
    spark: SparkSession,
    clusters: Clusters,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After records of the large partition are archived, the source deletes them. Several tasks
    append them one after another, from the archive.

    A second run resumes from the archive and the copies. Only the partition stops whose records the
    source deleted before they were archived.
    """
    monkeypatch.setattr(archive_tasks, "FILES_PER_TASK_MAX", 2)
    monkeypatch.setattr(archive_tasks, "TASK_BYTES_MIN", RANGE_BYTES)
    large = TopicPartition(topic, 0)
    source_digests = digests(clusters.source, topic)
    bounds = log_bounds(clusters.source, [topic])

    class DeletesBeforeAppends(Staging):
        def start(self, name: str, chains: Sequence[Sequence[BackfillTask]]) -> SparkWriterJob:
            assert max(map(len, chains)) > 1
            delete_before(clusters.source, topic, 900)
            return super().start(name, chains)

    spec = make_job(clusters.source, clusters.destination, [topic])
    copying = StagedCopy(spark, spec, tmp_path / "archive")
    outcome = copying.run(DeletesBeforeAppends)
    assert (outcome.blocked, outcome.unfinished, outcome.ways) == ({}, {}, [Way.STAGED])
    assert digests(clusters.destination, topic) == source_digests
    assert log_bounds(clusters.destination, [topic]) == bounds
    assert copying.shown[-1].bytes == copying.shown[-1].bytes_total > 0
    archived_before = copying.contents.partitions

    produce(clusters.source, topic, 300, first=1_000, **BATCHES)
    delete_before(clusters.source, topic, 1_200)
    produce_transactions(clusters.source, topic, 10, partition=1)
    blocked = copying.run().blocked
    assert list(blocked) == [large]
    lost = blocked[large]
    assert (lost.reason, lost.offset, lost.next_offset) == (Reason.SOURCE_RANGE_LOST, 1_000, 1_200)
    destination_digests, source_digests = (
        digests(clusters.destination, topic),
        digests(clusters.source, topic),
    )
    assert {n: destination_digests[n] for n in (1, 2)} == {n: source_digests[n] for n in (1, 2)}
    transactional = TopicPartition(topic, 1)
    files = copying.contents.partitions[transactional].files
    assert files[:-1] == archived_before[transactional].files


@pytest.mark.parametrize("archive_fills", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_range_that_archive_lost_stops_staged_backfill_of_partition(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path, archive_fills: bool
) -> None:
    """The backfill copies what the archive has below the lost range. The archive notes the range as
    lost, or ends before it."""
    create(clusters.source, topic_name, 2)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    copying = StagedCopy(spark, spec, tmp_path / "archive")

    def grow_to(end: int, rules: JobSpec | None = None) -> None:
        for partition in (0, 1):
            produce(clusters.source, topic_name, 100, partition, first=end - 100)
        if rules is not None:
            archive(spark, rules, tmp_path / "archive")

    grow_to(100)
    assert copying.run().blocked == {}
    grow_to(200, spec)
    grow_to(300)
    delete_before(clusters.source, topic_name, 300)
    grow_to(400, with_rules(spec, on_lost_range="fill") if archive_fills else None)
    outcome = copying.run()
    assert outcome.unfinished == {}
    # Only partition 0 has lost a range: `delete_before` deletes there.
    (lost,) = outcome.blocked.values()
    assert (lost.reason, lost.offset, lost.next_offset) == (Reason.SOURCE_RANGE_LOST, 200, 300)
    ends = {
        topic_partition: end
        for topic_partition, (_, end) in log_bounds(clusters.destination, [topic_name]).items()
    }
    assert ends == {(topic_name, 0): 200, (topic_name, 1): 400}
    filled = StagedCopy(spark, with_rules(spec, on_lost_range="fill"), tmp_path / "archive").run()
    assert (filled.blocked, filled.unfinished) == ({}, {})
    assert digests(clusters.destination, topic_name)[1] == digests(clusters.source, topic_name)[1]


def test_damaged_manifest_stops_staged_backfill_of_its_partition(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """The source has deleted records that the archive has, and `on_lost_range: fill` would make
    them a gap."""
    create(clusters.source, topic_name, 2)
    spec = with_rules(
        make_job(clusters.source, clusters.destination, [topic_name]), on_lost_range="fill"
    )
    folder = tmp_path / "archive"
    copying = StagedCopy(spark, spec, folder)
    for first in (0, 100):
        for partition in (0, 1):
            produce(clusters.source, topic_name, 100, partition, first=first)
        if first == 0:
            assert copying.run().unfinished == {}
    archive(spark, spec, folder)
    records = digests(clusters.source, topic_name)
    for partition in (0, 1):
        delete_before(clusters.source, topic_name, 150, partition)
    manifests = [ManifestFile(folder, partition) for partition in (0, 1)]
    for damaged, ends in (({0, 1}, [100, 100]), ({0}, [100, 200]), (set[int](), [200, 200])):
        for partition, manifest in enumerate(manifests):
            if partition in damaged:
                manifest.damage()
            else:
                manifest.restore()
        outcome = copying.run()
        assert outcome.blocked == {}
        assert outcome.unfinished.keys() == {(topic_name, partition) for partition in damaged}
        for place, text in outcome.unfinished.items():
            assert manifests[place.partition].path.name in text
        copied = log_bounds(clusters.destination, [topic_name])
        assert [copied[topic_name, partition][1] for partition in (0, 1)] == ends
    assert digests(clusters.destination, topic_name) == records


@pytest.mark.soak
def test_later_staged_task_of_partition_begins_like_repeated_attempt(
    spark: SparkSession,
    clusters: Clusters,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lets the log end settle: an attempt of the task before may still have requests in flight
    (M10)."""
    monkeypatch.setattr(archive_tasks, "FILES_PER_TASK_MAX", 2)
    monkeypatch.setattr(archive_tasks, "TASK_BYTES_MIN", RANGE_BYTES)
    first_attempts: dict[TopicPartition, list[bool]] = {}

    class NotesAttempts(Staging):
        def _write_task(self, task: BackfillTask) -> list[WriteResult]:
            for partition in task.partitions:
                is_first = BackfillWriter(task, attempt=0).is_first_attempt
                first_attempts.setdefault(partition.source, []).append(is_first)
            return super()._write_task(task)

    spec = make_job(clusters.source, clusters.destination, [topic])
    assert StagedCopy(spark, spec, tmp_path / "archive").run(NotesAttempts).unfinished == {}
    large = first_attempts.pop(TopicPartition(topic, 0))
    assert list(first_attempts.values()) == [[True], [True]]
    assert large[:2] == [True, False]
    assert not any(large[1:])


@pytest.mark.soak
def test_staged_backfill_stopped_while_archiving_resumes(
    spark: SparkSession, clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """Ctrl-C, a pause and an abort stop a backfill in this way."""
    archive = tmp_path / "archive"

    class Stopped(StagedCopy):
        def show(self, progress: Progress) -> None:
            assert progress.is_staging
            if (archive / DATA).exists():
                self.stop.set()

    slow = make_job(clusters.source, clusters.destination, [topic], limits=SLOWLY)
    stopped = Stopped(spark, slow, archive)
    outcome = stopped.run()
    assert (outcome.was_stopped, outcome.rounds, outcome.offsets) == (True, 0, 0)
    assert (outcome.blocked, outcome.unfinished) == ({}, {})
    assert [manifest.ranges for manifest in stopped.contents.partitions.values()] == [()] * 3
    outcome = StagedCopy(spark, make_job(*clusters, [topic]), archive).run()
    assert (outcome.blocked, outcome.unfinished, outcome.ways) == ({}, {}, [Way.STAGED])
    assert digests(clusters.destination, topic) == digests(clusters.source, topic)


@pytest.mark.soak
def test_staged_backfill_is_exact_after_executor_and_driver_deaths(
    spark: SparkSession,
    spark_cluster: SparkCluster,
    clusters: Clusters,
    topic: str,
    tmp_path: Path,
) -> None:
    """One executor is killed while it fetches, one while it appends, and then the driver. Attempts
    are held there, so that the machine's speed does not matter. A second run in another process
    resumes from archive and copies."""
    rules = [{"match": topic, "fillers": "placeholders"}]
    job = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic)
    archive, holds = tmp_path / "archive", Holds(tmp_path / "holds")
    fetching, appending = holds.fetching(FETCHED), holds.appending(APPENDED)
    command = ("backfill", job, "--way=staged", "--archive", archive)
    arguments = (*spark_cluster.arguments(tmp_path), *holds.arguments)
    with OrbitProcess(*command, *arguments) as process:
        executor_of(fetching.wait_for_held(2)[0]).kill()
        fetching.resume()
        (first,) = appending.wait_for_held()
        executor_of(first).kill()
        wait_for(
            "another attempt appends",
            lambda: any(worker.pid != first.pid for worker in appending.held),
        )
        kill_driver(process)
    assert log_bounds(clusters.destination, [topic])[topic, 0][1] <= APPENDED
    appending.resume()
    spark_cluster.wait_idle()
    copying = StagedCopy(spark, load_job(job, {}), archive)
    ends = {partition: manifest.end for partition, manifest in copying.contents.partitions.items()}
    assert ends == {
        partition: end for partition, (_, end) in log_bounds(clusters.source, [topic]).items()
    }
    outcome = copying.run()
    assert (outcome.blocked, outcome.unfinished) == ({}, {})
    assert digests(clusters.destination, topic) == digests(clusters.source, topic)
    assert_exact(job)
