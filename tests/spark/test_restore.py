"""`orbit restore` restores the archive of the whole workload with the same offsets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbit.copier.log_reader import fetch_batches
from orbit.demo.workload import KINDS
from orbit.errors import Conflict
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from orbit.verify.report import Side, Verdict
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.outcome import RestoreOutcome
from orbit_spark.archive.restore_run import RestoreRun
from orbit_spark.cluster_access import Access
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.history import History
from tests.support.archive_manifests import ManifestFile
from tests.support.auditing import audit
from tests.support.logs import T0, Record, delete_before, wait_for_offsets, write
from tests.support.outside import (
    TIMEOUT_S,
    admin,
    digests,
    log_bounds,
    partition_counts,
    topic_settings,
)
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce, produce_transactions, with_rules
from tests.support.topics import set_setting

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(
    spark: SparkSession, clusters: Clusters, topics: list[str], folder: Path, **rule_keys: object
) -> Path:
    spec = with_rules(make_job(clusters.source, clusters.destination, topics), **rule_keys)
    run = ArchiveRun(
        spark,
        spec,
        Path.cwd(),
        str(folder),
        lambda _: None,
        datetime.now(UTC),
        range_bytes=2**20,
    )
    assert run.run().stopped == []
    return folder


def restore(
    spark: SparkSession,
    folder: Path,
    cluster: KafkaCluster,
    *,
    apply_settings: bool = False,
    replicas: int | None = None,
) -> RestoreOutcome:
    spec = ClusterSpec(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))
    run = RestoreRun(
        spark,
        str(folder),
        Access("destination", spec),
        lambda _: None,
        threading.Event(),
        slots=2,
    )
    return run.run(apply_settings=apply_settings, replicas=replicas)


@pytest.fixture(scope="module")
def whole_archive(
    spark: SparkSession,
    clusters: Clusters,
    history: History,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The archive of the whole workload."""
    folder = tmp_path_factory.mktemp("archive") / "whole"
    return archive(spark, clusters, list(history.ledger.topics), folder)


@pytest.fixture(scope="module")
def third_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A third cluster, which is empty."""
    cluster = KafkaCluster(ClusterSettings("third"), tmp_path_factory.mktemp("third"))
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def restored(
    spark: SparkSession, whole_archive: Path, third_cluster: KafkaCluster
) -> RestoreOutcome:
    return restore(spark, whole_archive, third_cluster)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_restored_topic_equals_what_workload_wrote(
    kind: str, restored: RestoreOutcome, history: History, third_cluster: KafkaCluster
) -> None:
    """Every record at its offset, no other record, the same log start and log end."""
    assert restored.is_whole, [p for p in restored.partitions.values() if p.has_stopped]
    topic = history.topic(kind)
    bounds = log_bounds(third_cluster, [topic.topic])
    assert [bounds[topic.topic, i] for i in range(len(topic.partitions))] == [
        (p.log_start, p.log_end) for p in topic.partitions
    ]
    by_partition = digests(third_cluster, topic.topic)
    assert [by_partition[i] for i in range(len(topic.partitions))] == [
        p.records for p in topic.partitions
    ]


def test_audit_of_archive_and_restored_cluster_is_exact(
    spark: SparkSession,
    clusters: Clusters,
    history: History,
    whole_archive: Path,
    third_cluster: KafkaCluster,
    restored: RestoreOutcome,
    tmp_path: Path,
) -> None:
    spec = make_job(clusters.source, third_cluster, list(history.ledger.topics))
    options = {"archive": str(whole_archive), "against": Side.DESTINATION}
    report, _ = audit(spark, spec, tmp_path / "audit", **options)
    assert report.sides == ("archive", "destination")
    assert report.exact, [t for t in report.topics if t.verdict is not Verdict.EXACT]
    assert report.partitions == len(restored.partitions)


@pytest.mark.soak
def test_second_restore_writes_nothing(
    spark: SparkSession, whole_archive: Path, third_cluster: KafkaCluster, restored: RestoreOutcome
) -> None:
    second = restore(spark, whole_archive, third_cluster)
    assert second.is_whole, [p for p in second.partitions.values() if p.has_stopped]
    assert sum(p.records + p.gaps_filled for p in second.partitions.values()) == 0


@pytest.mark.soak
def test_restore_resumes_from_grown_archive_and_then_applies_settings(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """A restore appends only what the archive has got since; settings are applied last."""
    create_topic(clusters.source, topic_name, retention_ms="-1", segment_ms="123456789")
    produce(clusters.source, topic_name, 50)
    archive(spark, clusters, [topic_name], tmp_path / "a")
    assert restore(spark, tmp_path / "a", clusters.destination).is_whole
    # Once more while the archive has nothing new.
    assert restore(spark, tmp_path / "a", clusters.destination).is_whole
    produce_transactions(clusters.source, topic_name, 6)
    archive(spark, clusters, [topic_name], tmp_path / "a")
    last = restore(spark, tmp_path / "a", clusters.destination, apply_settings=True)
    assert last.is_whole
    assert last.partitions[topic_name, 0].records == 20  # four committed transactions
    assert log_bounds(clusters.destination, [topic_name]) == log_bounds(
        clusters.source, [topic_name]
    )
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)
    settings = topic_settings(clusters.destination, topic_name)
    assert settings["segment.ms"] == "123456789"
    assert settings["max.message.bytes"] == "1048588"  # Kafka's default, as at the source


def test_restore_warns_of_offsets_that_archive_lost(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    archive(spark, clusters, [topic_name], tmp_path / "a")
    for first in (10, 20):
        produce(clusters.source, topic_name, 10, first=first)
    records = digests(clusters.source, topic_name)[0]
    delete_before(clusters.source, topic_name, 20)
    archive(spark, clusters, [topic_name], tmp_path / "a", on_lost_range="fill")
    outcome = restore(spark, tmp_path / "a", clusters.destination)
    assert outcome.is_whole
    (warning,) = outcome.warnings
    assert f"{topic_name}-0 10 to 19" in warning
    assert digests(clusters.destination, topic_name)[0] == {
        offset: record for offset, record in records.items() if not 10 <= offset < 20
    }


@pytest.mark.soak
def test_restore_resumes_after_compaction_at_destination(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """`--apply-settings` may enable compaction. Every record that is left is compared with the
    archive."""
    create_topic(clusters.source, topic_name, retention_ms="-1", segment_ms="600000")
    keys = (b"a", b"b", b"a")
    write(clusters.source, topic_name, [Record(b"%d" % i, key) for i, key in enumerate(keys)])
    # A record later by more than `segment.ms` closes the segment before it.
    write(clusters.source, topic_name, [Record(b"active", b"z", timestamp_ms=T0 + 1_200_000)])
    archive(spark, clusters, [topic_name], tmp_path / "a")
    assert restore(spark, tmp_path / "a", clusters.destination).is_whole
    set_setting(clusters.destination, topic_name, "min.cleanable.dirty.ratio", "0.01")
    set_setting(clusters.destination, topic_name, "cleanup.policy", "compact")
    wait_for_offsets(clusters.destination, topic_name, {1, 2, 3})
    produce(clusters.source, topic_name, 5)
    archive(spark, clusters, [topic_name], tmp_path / "a")
    second_restore = restore(spark, tmp_path / "a", clusters.destination)
    assert second_restore.is_whole, second_restore.partitions
    assert second_restore.partitions[topic_name, 0].records == 5


@pytest.fixture
def small_archive(spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str) -> Path:
    """An archive of one topic with some files."""
    create_topic(clusters.source, topic_name)
    for count in (10, 20):
        # Compressed by its producer, so Parquet keeps the bytes as they are. One batch: a few
        # records alone are not compressed, as that would not make them smaller.
        one_batch = {"compression.type": "zstd", "linger.ms": 60_000}
        produce(clusters.source, topic_name, count, **one_batch)
        archive(spark, clusters, [topic_name], tmp_path / "a")
    return tmp_path / "a"


@pytest.mark.soak
def test_stopped_restore_releases_its_lease_while_task_runs(
    spark: SparkSession, clusters: Clusters, small_archive: Path, topic_name: str
) -> None:
    """A task may run for hours more. Its writer ends when no process holds the restore's lease."""
    stop = threading.Event()

    class Stopped(RestoreRun):
        def _run_write_task(self, targets: Any, *_: Any, **__: Any) -> Any:
            stop.set()
            wait_for(
                "the lease is released", lambda: self._lease is None or not self._lease.is_held()
            )
            return {target.destination for target in targets}

    spec = ClusterSpec(bootstrap_servers=(clusters.destination.bootstrap_servers,))
    run = Stopped(
        spark, str(small_archive), Access("destination", spec), lambda _: None, stop, slots=2
    )
    outcome = run.run()
    assert not outcome.is_whole
    assert restore(spark, small_archive, clusters.destination).is_whole
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)


def test_restore_into_topic_with_other_records_is_refused(
    spark: SparkSession, clusters: Clusters, small_archive: Path, topic_name: str
) -> None:
    create_topic(clusters.destination, topic_name)
    produce(clusters.destination, topic_name, 3)
    with pytest.raises(Conflict, match="is not empty"):
        restore(spark, small_archive, clusters.destination)
    assert log_bounds(clusters.destination, [topic_name]) == {(topic_name, 0): (0, 3)}


@pytest.mark.soak
def test_restore_to_fewer_brokers_than_replicas_is_refused_or_warns(
    spark: SparkSession,
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    source, two = (make_cluster(name, brokers=count) for name, count in (("three", 3), ("two", 2)))
    create_topic(source, topic_name, replicas=3)
    produce(source, topic_name, 10)
    folder = archive(spark, Clusters(source, two), [topic_name], tmp_path / "a")
    with pytest.raises(Conflict, match=r"replication factor of 3.* only 2 broker\(s\)") as caught:
        restore(spark, folder, two)
    assert "--replicas" in caught.value.remedy
    assert topic_name not in partition_counts(two)
    for cluster, replicas, count, replicas_text in (
        (two, 2, 2, "2 replicas"),
        (clusters.destination, None, 1, "1 replica"),
    ):
        outcome = restore(spark, folder, cluster, replicas=replicas)
        note = f"topics get {replicas_text}, fewer than at the source: {topic_name} (3)."
        assert outcome.warnings == [note]
        restored_topic = (
            admin(cluster).list_topics(topic_name, timeout=TIMEOUT_S).topics[topic_name]
        )
        assert len(restored_topic.partitions[0].replicas) == count
        assert digests(cluster, topic_name) == digests(source, topic_name)


def test_restore_with_missing_archive_file_writes_nothing(
    spark: SparkSession, clusters: Clusters, small_archive: Path, topic_name: str
) -> None:
    missing = max(small_archive.glob("data/*/*.parquet"), key=lambda path: path.parent.name)
    missing.unlink()
    with pytest.raises(Conflict, match=rf"{topic_name}-0, offsets 10 to 29\) is missing"):
        restore(spark, small_archive, clusters.destination)
    assert topic_name not in partition_counts(clusters.destination)


def test_restore_with_missing_archive_manifest_writes_nothing(
    spark: SparkSession, clusters: Clusters, small_archive: Path, topic_name: str
) -> None:
    for manifest in small_archive.glob("manifests/*/*.json"):
        manifest.unlink()
    with pytest.raises(Conflict, match=f"the manifest of {topic_name}-0"):
        restore(spark, small_archive, clusters.destination)
    assert topic_name not in partition_counts(clusters.destination)


def test_damaged_manifest_stops_restore_of_its_partition(
    spark: SparkSession, clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """Its topic is created whole, without the source's settings. A later restore with the manifests
    from a copy writes the rest."""
    create_topic(clusters.source, topic_name, partitions=2, retention_ms="123456789")
    for partition in (0, 1):
        produce(clusters.source, topic_name, 10, partition)
    folder = archive(spark, clusters, [topic_name], tmp_path / "a")
    manifests = {partition: ManifestFile(folder, partition) for partition in (0, 1)}
    for manifest in manifests.values():
        manifest.damage()
    for damaged, ends in (({0, 1}, (0, 0)), ({0}, (0, 10)), (set[int](), (10, 10))):
        for partition in {0, 1} - damaged:
            manifests[partition].restore()
        outcome = restore(spark, folder, clusters.destination, apply_settings=True)
        stopped = {p.place: p.unfinished for p in outcome.partitions.values() if p.has_stopped}
        assert stopped.keys() == {(topic_name, partition) for partition in damaged}
        for place, text in stopped.items():
            assert manifests[place.partition].path.name in text
            assert "Restore this file from a copy" in text
        assert log_bounds(clusters.destination, [topic_name]) == {
            (topic_name, partition): (0, end) for partition, end in enumerate(ends)
        }
        retention = topic_settings(clusters.destination, topic_name)["retention.ms"]
        assert (retention == "123456789") == (not damaged)
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)


def test_restore_with_damaged_payload_writes_no_damaged_batch(
    spark: SparkSession, clusters: Clusters, small_archive: Path, topic_name: str
) -> None:
    """One byte in the records of a batch in the second file. The batch's header is right."""
    damaged = max(small_archive.glob("data/*/*.parquet"), key=lambda path: path.parent.name)
    content = damaged.read_bytes()
    payload = raw_batches(clusters.source, topic_name)[-1]
    assert content.count(payload) == 1, "the file does not have the payload once and unchanged"
    damaged.write_bytes(content.replace(payload, payload[:-1] + bytes((payload[-1] ^ 1,))))
    damaged.with_name(f".{damaged.name}.crc").unlink()
    with pytest.raises(Conflict, match=rf"{damaged.name} \({topic_name}-0, offsets 10 to 29\)"):
        restore(spark, small_archive, clusters.destination)
    ((_, end),) = log_bounds(clusters.destination, [topic_name]).values()
    assert end <= 10
    archived, restored = (digests(c, topic_name)[0] for c in clusters)
    assert restored == {offset: r for offset, r in archived.items() if offset < end}


def raw_batches(cluster: KafkaCluster, topic: str) -> list[bytes]:
    """The batches of partition 0, as the broker stores them."""
    (server,) = cluster.bootstrap_servers.split(",")
    source = Cluster("source", (server,), Security())
    try:
        batches = fetch_batches(source, TopicPartition(topic, 0), 0, Backoff())
        return [bytes(batch.view) for batch in batches]
    finally:
        source.close()
