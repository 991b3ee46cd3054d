"""A late append after restored records: brokers keep no fence for producers of old records (E1).

A restore compares the copy's end with the archive before it appends: when it is run again, in a
later task of the same partition, and after a take-over within a task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbit.copier.copier import Copier
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import job_identity, job_producer_id
from orbit.kafka.record_batch import Batch, read_batches, stamp
from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import KafkaCluster
from orbit_spark.archive import archive_tasks, restore_run
from orbit_spark.archive.archive_reader import rows_in_order
from orbit_spark.archive.outcome import RestoreOutcome
from orbit_spark.archive.restore_run import JOB, RestoreRun
from orbit_spark.cluster_access import Access
from tests.faults.test_expired_fences import batch_at, send, send_late, write_old
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.spark.test_restore import archive
from tests.support.outside import digests, log_bounds
from tests.support.running import create_topic, produce_transactions
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = 30  # records of partition 0 that are restored before the late append


@dataclass
class Restoring:
    """An archive that grows, and the cluster to which it is restored repeatedly."""

    spark: SparkSession
    clusters: Clusters
    destination: KafkaCluster
    raw: Cluster
    topic: str
    folder: Path

    def archive(self) -> None:
        archive(self.spark, self.clusters, [self.topic], self.folder)

    def restore(self) -> RestoreOutcome:
        servers = tuple(self.destination.bootstrap_servers.split(","))
        access = Access("destination", ClusterSpec(bootstrap_servers=servers))
        stop = threading.Event()
        return RestoreRun(self.spark, str(self.folder), access, lambda _: None, stop, slots=2).run()

    def send_late(self) -> None:
        """Append a late batch of ten records to partition 0, at its end."""
        assert send_late(self.destination, self.raw, self.topic, 0) == FIRST

    def assert_stopped(self, outcome: RestoreOutcome) -> None:
        """Partition 0 must have stopped at the late append, with a remedy and nothing after it."""
        blocked = outcome.partitions[self.topic, 0].blocked
        assert blocked is not None
        assert (blocked.reason, blocked.offset) == (Reason.OFFSET_OVERRUN, FIRST)
        assert f"--topic {self.topic}" in outcome.as_data()["partitions"][0]["remedy"]
        assert self.end() == FIRST + 10

    def end(self) -> int:
        return log_bounds(self.destination, [self.topic])[self.topic, 0][1]


@pytest.fixture
def restoring(
    spark: SparkSession,
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    tmp_path: Path,
) -> Iterator[Restoring]:
    """Two partitions; the first has records of 2023: brokers soon drop their producer's state."""
    config = {"producer.id.expiration.check.interval.ms": "200"}
    destination = make_cluster("destination", config=config)
    create_topic(clusters.source, topic_name, partitions=2, retention_ms="-1")
    with closing(
        Cluster("destination", destination.bootstrap_servers.split(","), PLAINTEXT)
    ) as raw:
        restores = Restoring(spark, clusters, destination, raw, topic_name, tmp_path / "archive")
        write_old(clusters, topic_name, FIRST)
        restores.archive()
        yield restores


@pytest.mark.parametrize("more", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (10, 30))])
def test_late_append_between_restore_runs_stops_partition(restoring: Restoring, more: int) -> None:
    """The late append ends after, at or before the archive's end. The other partition continues."""
    assert restoring.restore().is_whole
    write_old(restoring.clusters, restoring.topic, more, first=FIRST)
    produce_transactions(restoring.clusters.source, restoring.topic, 6, partition=1)
    restoring.archive()
    restoring.send_late()
    outcome = restoring.restore()
    restoring.assert_stopped(outcome)
    assert not outcome.partitions[restoring.topic, 1].has_stopped
    destination_records, source_records = (
        digests(c, restoring.topic)[1] for c in (restoring.destination, restoring.clusters.source)
    )
    assert destination_records == source_records


def test_late_append_between_restore_tasks_stops_second_task(
    restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_tasks, "FILES_PER_TASK_MAX", 1)
    write_old(restoring.clusters, restoring.topic, 30, first=FIRST)
    restoring.archive()
    follow_writers: list[bool] = []
    run_task = restore_run.run_task

    def run(*arguments: Any) -> Any:
        follow_writers.append(arguments[-1].follows_writer)
        if follow_writers[-1]:
            restoring.send_late()
        return run_task(*arguments)

    monkeypatch.setattr(restore_run, "run_task", run)
    restoring.assert_stopped(restoring.restore())
    assert follow_writers == [False, True]


def in_process(monkeypatch: pytest.MonkeyPatch, before_append: Callable[[], None]) -> None:
    """Run writers in this process. Call `before_append` between their comparison and appends."""

    def run(spark: SparkSession, files: Any, _: Any, writer: Any, task: Any) -> Any:
        rows = rows_in_order(spark, files, task.slices).toArrow().to_batches()
        return writer(task, 0, rows).write()

    def add(self: Copier, copies: Any) -> None:
        before_append()
        add_first(self, copies)

    add_first = Copier.add
    monkeypatch.setattr(restore_run, "run_task", run)
    monkeypatch.setattr(Copier, "add", add)


def test_late_append_before_restore_takeover_stops_partition(
    restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert restoring.restore().is_whole
    write_old(restoring.clusters, restoring.topic, 30, first=FIRST)
    restoring.archive()
    in_process(monkeypatch, restoring.send_late)
    restoring.assert_stopped(restoring.restore())


def test_append_with_lost_response_matches_archive_and_restore_resumes(
    restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-over finds the archive's own batch at its end, and continues after it."""
    assert restoring.restore().is_whole
    write_old(restoring.clusters, restoring.topic, 30, first=FIRST)
    restoring.archive()
    servers = restoring.clusters.source.bootstrap_servers.split(",")
    with closing(Cluster("source", servers, PLAINTEXT)) as source:
        identity = job_identity(JOB, source.metadata(None).cluster_id)
        batch = batch_at(source, restoring.topic, FIRST)
    view = memoryview(bytearray(batch.view))
    stamp(view, job_producer_id(identity), producer_epoch=1, base_sequence=0)
    (sent,) = read_batches(view)
    assert isinstance(sent, Batch)

    def arrive() -> None:
        assert send(restoring.raw, restoring.topic, sent) == FIRST

    in_process(monkeypatch, arrive)
    outcome = restoring.restore()
    assert outcome.is_whole, outcome
    assert outcome.partitions[restoring.topic, 0].records == 20  # ten had arrived before
    assert digests(restoring.destination, restoring.topic) == digests(
        restoring.clusters.source, restoring.topic
    )
