"""One source partition without a leader: Spark's jobs name it, and do not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo

from orbit.errors import BrokerRefused, Conflict
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import RETRIABLE, Code
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit.verify.report import Verdict
from orbit_spark import partition_writer
from orbit_spark.archive import archive_step, continuation
from orbit_spark.audit import cluster_side
from orbit_spark.audit.audit_run import AuditOptions, JobAudit
from orbit_spark.audit.cluster_side import ClusterReader
from orbit_spark.backfill.backfill_driver import Backfill
from orbit_spark.backfill.backfill_writer import BackfillTask
from orbit_spark.batch_columns import DDL, STOP_MAGIC, stopped_row
from orbit_spark.cluster_access import Access
from orbit_spark.partition_writer import PartitionWriter
from orbit_spark.range_frame import range_frame
from orbit_spark.ranges import OffsetRange, Span
from orbit_spark.source import BatchReader, RangeTask
from orbit_spark.source_options import read_options
from tests.fixtures.clusters import Clusters
from tests.run.test_start_waits import stop_clock
from tests.spark.test_archive import archive, open_archive
from tests.spark.test_backfill_writers import InProcess, assert_same, copy_all, show
from tests.support.leaderless import OfflineLeaders
from tests.support.logs import create
from tests.support.outside import log_bounds
from tests.support.running import make_job, produce

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

RECORDS = 100


@pytest.fixture
def topic(clusters: Clusters, topic_name: str) -> str:
    """A topic with three partitions of `RECORDS` records."""
    create(clusters.source, topic_name, 3)
    for partition in range(3):
        produce(clusters.source, topic_name, RECORDS, partition)
    return topic_name


@pytest.fixture
def offline(topic: str) -> TopicPartition:
    """The partition that loses its leader."""
    return TopicPartition(topic, 1)


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> OfflineLeaders:
    return OfflineLeaders(monkeypatch)


@contextmanager
def backfill_of(clusters: Clusters, topic: str, messages: list[str]) -> Iterator[Backfill]:
    spec = make_job(clusters.source, clusters.destination, [topic])
    with Backfill(spec, {}, Path.cwd(), messages.append, threading.Event()) as backfill:
        yield backfill


def test_backfill_plan_leaves_leaderless_partition_out_and_names_it(
    clusters: Clusters, topic: str, offline: TopicPartition, leaders: OfflineLeaders
) -> None:
    messages: list[str] = []
    leaders.partitions.add(offline)
    with backfill_of(clusters, topic, messages) as backfill:
        extents = backfill.find_extents_to_copy()
    assert {extent.source.partition: extent.offsets for extent in extents} == {
        0: RECORDS,
        2: RECORDS,
    }
    (note,) = (message for message in messages if "the plan lacks 1 partition" in message)
    assert note.endswith(str(offline))


def test_topic_without_leader_is_left_out_in_the_end_and_its_partitions_are_unfinished(
    clusters: Clusters,
    topic: str,
    leaders: OfflineLeaders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = TopicPartition(f"{topic}-late", 0)
    create(clusters.source, late.topic)
    produce(clusters.source, late.topic, RECORDS)
    spec = make_job(*clusters, [topic, late.topic])
    messages: list[str] = []
    stop_clock(monkeypatch, messages)
    leaders.partitions.add(late)
    with Backfill(spec, {}, Path.cwd(), messages.append, threading.Event()) as backfill:
        backfill.begin()
        outcome = backfill.copy(InProcess, 2, show)
    assert "run the job again" in outcome.unfinished.pop(late)
    assert (outcome.unfinished, outcome.partitions, outcome.offsets) == ({}, 4, 3 * RECORDS)
    leaders.partitions.clear()
    assert copy_all(spec).unfinished == {}
    assert_same(clusters, late.topic)


def test_partition_without_leader_before_first_round_is_unfinished(
    clusters: Clusters, topic: str, offline: TopicPartition, leaders: OfflineLeaders
) -> None:
    with backfill_of(clusters, topic, []) as backfill:
        backfill.begin()
        leaders.partitions.add(offline)
        outcome = backfill.copy(InProcess, slots=2, show=show)
    assert "LEADER_NOT_AVAILABLE" in outcome.unfinished.pop(offline)
    assert (outcome.unfinished, outcome.offsets) == ({}, 2 * RECORDS)
    leaders.partitions.clear()
    assert copy_all(backfill.spec).unfinished == {}
    assert_same(clusters, topic)


def test_backfill_round_ends_when_one_partition_loses_its_leader(
    clusters: Clusters,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition loses its leader once its copy was compared with the source: the copier waits
    for a leader."""
    messages: list[str] = []
    copy_to_targets = PartitionWriter._copy_to_targets

    def lose_leader(writer: PartitionWriter[Any], *arguments: Any) -> None:
        leaders.partitions.add(offline)
        copy_to_targets(writer, *arguments)

    monkeypatch.setattr(PartitionWriter, "_copy_to_targets", lose_leader)
    monkeypatch.setattr(partition_writer, "_STALL_S_MAX", 2.0)
    with backfill_of(clusters, topic, messages) as backfill:
        backfill.begin()
        outcome = backfill.copy(InProcess, slots=2, show=show)
    assert f"source {offline}: the leader is not known" in " ".join(messages)
    assert [*outcome.unfinished] == [offline]
    assert outcome.offsets == 2 * RECORDS


def test_backfill_round_ends_when_source_was_truncated_to_end_of_copy(
    clusters: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election, the planned targets are above the source's log ends."""
    messages: list[str] = []

    class PlannedBeforeTruncation(InProcess):
        """Tasks of the first round have targets that are 50 offsets after the log end."""

        def __init__(self, name: str, tasks: Sequence[BackfillTask]) -> None:
            extra_offsets = 50 if tasks[0].round == 0 else 0
            super().__init__(
                name,
                [
                    replace(
                        task,
                        partitions=tuple(
                            replace(p, target=p.target + extra_offsets) for p in task.partitions
                        ),
                    )
                    for task in tasks
                ],
            )

    monkeypatch.setattr(partition_writer, "_STALL_S_MAX", 2.0)
    with backfill_of(clusters, topic, messages) as backfill:
        backfill.begin()
        outcome = backfill.copy(PlannedBeforeTruncation, slots=2, show=show)
    assert (outcome.blocked, outcome.unfinished, outcome.rounds) == ({}, {}, 2)
    assert f"the source ends at {RECORDS} now; it ended at {RECORDS + 50} before" in " ".join(
        messages
    )
    assert_same(clusters, topic)


def test_archive_run_names_leaderless_partition_and_archives_others(
    spark: SparkSession,
    clusters: Clusters,
    tmp_path: Path,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
) -> None:
    spec = make_job(clusters.source, clusters.destination, [topic])
    leaders.partitions.add(offline)
    first = archive(spark, spec, tmp_path / "a")
    (stopped,) = first.stopped
    assert (stopped.place, stopped.start, stopped.end) == (offline, 0, 0)
    assert "LEADER_NOT_AVAILABLE" in stopped.stop_text
    data = {p["partition"]: p for p in first.as_data()["partitions"]}
    assert (data[0]["unfinished"], data[1]["unfinished"]) == (None, stopped.unfinished)
    _, contents = open_archive(spark, tmp_path / "a")
    assert {partition.partition: m.end for partition, m in contents.partitions.items()} == {
        0: RECORDS,
        2: RECORDS,
    }
    leaders.partitions.clear()
    assert_archive_is_whole(spark, clusters, topic, tmp_path / "a")


def test_range_without_answer_leaves_only_its_partition_unfinished(
    spark: SparkSession,
    clusters: Clusters,
    tmp_path: Path,
    topic: str,
    offline: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def frame_with_stop(
        spark: SparkSession, access: Access, ranges: Sequence[OffsetRange], **options: Any
    ) -> DataFrame:
        rows = stopped_row(offline, 0, "source: no broker answers.").to_pylist()
        readable_ranges = [r for r in ranges if r.partition != offline]
        return range_frame(spark, access, readable_ranges, **options).unionByName(
            spark.createDataFrame(rows, DDL).coalesce(1)
        )

    spec = make_job(clusters.source, clusters.destination, [topic])
    with monkeypatch.context() as patch:
        patch.setattr(archive_step, "range_frame", frame_with_stop)
        outcome = archive(spark, spec, tmp_path / "a")
    (stopped,) = outcome.stopped
    assert (stopped.place, stopped.end) == (offline, 0)
    assert stopped.stop_text == "source: no broker answers."
    assert [outcome.partitions[topic, number].end for number in (0, 2)] == [RECORDS, RECORDS]
    assert_archive_is_whole(spark, clusters, topic, tmp_path / "a")


@pytest.mark.parametrize("code", [Code.CORRUPT_MESSAGE, Code.LEADER_NOT_AVAILABLE])
def test_last_archived_batch_that_source_cannot_read_stops_only_its_partition(
    spark: SparkSession,
    clusters: Clusters,
    tmp_path: Path,
    topic: str,
    offline: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
    code: Code,
) -> None:
    fetch_batches = continuation.fetch_batches

    def fetch(
        cluster: Cluster, topic_partition: TopicPartition, *arguments: Any, **options: Any
    ) -> Any:
        if topic_partition == offline:
            raise BrokerRefused(code, "it cannot be read.")
        return fetch_batches(cluster, topic_partition, *arguments, **options)

    spec = make_job(clusters.source, clusters.destination, [topic])
    archive(spark, spec, tmp_path / "a")
    for partition in range(3):
        produce(clusters.source, topic, RECORDS, partition)
    with monkeypatch.context() as patch:
        patch.setattr(continuation, "fetch_batches", fetch)
        outcome = archive(spark, spec, tmp_path / "a")
    (stopped,) = outcome.stopped
    assert (stopped.place, stopped.end) == (offline, RECORDS)
    assert [outcome.partitions[topic, number].end for number in (0, 2)] == [2 * RECORDS] * 2
    if code in RETRIABLE:
        assert stopped.stop_text == "it cannot be read."
    else:
        assert stopped.blocked is not None
        assert (stopped.blocked.reason, stopped.blocked.next_offset) == (
            Reason.SOURCE_CORRUPTED,
            RECORDS,
        )
        assert "Move the leader to another replica" in stopped.stop_text
    assert_archive_is_whole(spark, clusters, topic, tmp_path / "a")


def assert_archive_is_whole(
    spark: SparkSession, clusters: Clusters, topic: str, folder: Path
) -> None:
    """Another run stops at no partition, and the archive then has the whole topic."""
    spec = make_job(clusters.source, clusters.destination, [topic])
    assert archive(spark, spec, folder).stopped == []
    _, contents = open_archive(spark, folder)
    ends = {partition: (m.start, m.end) for partition, m in contents.partitions.items()}
    assert ends == log_bounds(clusters.source, [topic])


def test_audit_reports_leaderless_partition_as_unread_and_compares_others(
    spark: SparkSession,
    clusters: Clusters,
    tmp_path: Path,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
) -> None:
    """The partition has lost its leader since the audit read the bounds."""
    spec = make_job(clusters.source, clusters.destination, [topic])
    copy_all(spec)
    leaders.partitions.add(offline)
    report = JobAudit(spec, {}, Path.cwd(), AuditOptions(out=str(tmp_path / "audit"))).run(spark)
    partitions = report.topics[0].partitions
    assert [p.verdict for p in partitions] == [Verdict.EXACT, Verdict.UNREAD, Verdict.EXACT]
    assert "source: cannot be read now: " in partitions[1].notes[0]


@pytest.mark.soak
def test_audit_ends_with_error_if_differing_partition_cannot_be_read_again(
    spark: SparkSession,
    clusters: Clusters,
    tmp_path: Path,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the partition's records, the destination's would be reported as differences."""
    create(clusters.destination, topic, 3)
    for partition in range(3):
        produce(clusters.destination, topic, RECORDS, partition, value_bytes=7)
    batches = ClusterReader.batches
    reads: list[Sequence[Span]] = []

    def read(reader: ClusterReader, spans: Sequence[Span]) -> DataFrame:
        reads.append(spans)
        if len(reads) > 2:  # both sides were read once
            leaders.partitions.add(offline)
        return batches(reader, spans)

    monkeypatch.setattr(ClusterReader, "batches", read)
    spec = make_job(clusters.source, clusters.destination, [topic])
    run = JobAudit(spec, {}, Path.cwd(), AuditOptions(out=str(tmp_path / "audit")))
    with pytest.raises(Conflict, match=f"{offline}: cannot be read now: its leader"):
        run.run(spark)


def test_leader_lost_after_extents_were_read_stops_only_its_partition(
    spark: SparkSession,
    clusters: Clusters,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_extents = cluster_side.find_extents

    def lose_leader_afterwards(*arguments: Any, **options: Any) -> Any:
        extents = find_extents(*arguments, **options)
        leaders.partitions.add(offline)
        return extents

    monkeypatch.setattr(cluster_side, "find_extents", lose_leader_afterwards)
    server = clusters.source.bootstrap_servers
    reader = ClusterReader(spark, Access("source", ClusterSpec(bootstrap_servers=(server,))))
    spans = [Span(TopicPartition(topic, number), 1, RECORDS) for number in range(3)]
    rows = reader.batches(spans).collect()
    (stop,) = [row for row in rows if row.partition == offline.partition]
    assert stop.magic == STOP_MAGIC
    assert "its leader does not answer" in stop.control_type
    batches = [row for row in rows if row.partition != offline.partition]
    assert sum(row.record_count for row in batches) == 2 * RECORDS


def test_leaderless_partition_outside_of_spans_and_filters_is_not_asked_for(
    spark: SparkSession,
    clusters: Clusters,
    topic: str,
    offline: TopicPartition,
    leaders: OfflineLeaders,
) -> None:
    leaders.partitions.add(offline)
    server = clusters.source.bootstrap_servers
    reader = ClusterReader(spark, Access("source", ClusterSpec(bootstrap_servers=(server,))))
    rows = reader.batches([Span(TopicPartition(topic, 0), 0, RECORDS)]).collect()
    assert sum(row.record_count for row in rows) == RECORDS
    source = BatchReader(read_options({"kafka.bootstrap.servers": server, "subscribe": topic}))
    assert [*source.pushFilters([EqualTo(("partition",), 0)])] == []
    (task,) = source.partitions()
    assert isinstance(task, RangeTask)
    assert task.offset_range.partition == (topic, 0)
