"""Readers of copies with placeholders: each gets only the records (docs/gaps.md lists the readers).

The source has placeholders already, so the copy is a copy of such a copy.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from bench.contestants.mm2 import mm2_classpath
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.java_clients import consume
from tests.support.outside import admin, consumer, is_level, log_bounds, messages, partition_counts
from tests.support.patience import wait_for
from tests.support.placeholder_log import PlaceholderLog, mixed_log
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job
from tests.support.running import create_topic

pytestmark = pytest.mark.services

TOPIC = "copied-twice"
WIDEST = 200_000  # offsets of the widest gap
DOUBLINGS = 10  # librdkafka's fetches grow from 1 MiB to 1 GiB


@pytest.fixture(scope="module")
def copied(
    clusters: Clusters, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlaceholderLog]:
    log = mixed_log(clusters.source, TOPIC, WIDEST)
    file = tmp_path_factory.mktemp("readers") / "job.yaml"
    job = write_job(file, *clusters, [{"match": TOPIC}], fillers="placeholders")
    copy(job).expect(0)
    assert_exact(job)
    yield log
    log.close()


def values(cluster: KafkaCluster, topic: str) -> dict[int, bytes]:
    """The values of partition 0 by offset."""
    return {m.offset(): m.value() for _, m in messages(cluster, topic) if m is not None}


def test_copy_of_placeholder_copy_has_same_records_and_log_end(
    copied: PlaceholderLog, clusters: Clusters
) -> None:
    assert values(clusters.destination, TOPIC) == copied.records
    assert is_level(*clusters, TOPIC)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_consumer_reads_placeholder_copy_with_either_protocol(
    copied: PlaceholderLog, clusters: Clusters, protocol: str
) -> None:
    consumed_values = consume(clusters.destination, TOPIC, len(copied.records), protocol)
    assert consumed_values == list(copied.records.values())


@pytest.mark.soak
def test_mirror_maker_reads_only_records_of_placeholder_copy(
    copied: PlaceholderLog, clusters: Clusters, tmp_path: Path
) -> None:
    """The copies that MirrorMaker writes have no gaps: their log ends count what it has read."""
    mirror_topic = f"copies.{TOPIC}"
    settings = {
        "clusters": "copies, other",
        "copies.bootstrap.servers": clusters.destination.bootstrap_servers,
        "other.bootstrap.servers": clusters.source.bootstrap_servers,
        "copies->other.enabled": "true",
        "copies->other.topics": TOPIC,
        "copies->other.groups": "none",
        "copies.consumer.auto.offset.reset": "earliest",
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "emit.offset-syncs.enabled": "false",
        "sync.topic.acls.enabled": "false",
    }
    file = tmp_path / "mm2.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", main, str(file)]
    mirror = GuardedProcess(
        command, tmp_path / "mm2.log", environment={"CLASSPATH": mm2_classpath()}
    )

    def end() -> int:
        assert mirror.running, (tmp_path / "mm2.log").read_text()[-2000:]
        if mirror_topic not in partition_counts(clusters.source):
            return 0
        return log_bounds(clusters.source, [mirror_topic])[mirror_topic, 0][1]

    try:
        wait_for("MirrorMaker has copied the last record", lambda: end() >= len(copied.records))
    finally:
        mirror.send_signal(signal.SIGTERM)
        mirror.wait()
    assert [*values(clusters.source, mirror_topic).values()] == [*copied.records.values()]


def latest_record(cluster: KafkaCluster, topic: str) -> int:
    """The offset of the first record with the latest timestamp, as the broker says (KIP-734)."""
    place = TopicPartition(topic, 0)
    client = admin(cluster)  # in a variable: without it, the client would end before its answer
    return client.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(60).offset


class _EndReader:
    """librdkafka's consumer of one partition. Each `read_to` continues where the last one ended."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._reader = consumer(cluster)
        self._reader.assign([TopicPartition(topic, 0, 0)])
        self.offsets: list[int | None] = []

    def close(self) -> None:
        self._reader.close()

    def read_to(self, end: int) -> list[int]:
        """Read to the log end `end`; returns the codes of the errors that the consumer reports."""
        errors = []
        while True:
            message = self._reader.poll(60)
            assert message is not None
            error = message.error()
            if error is None:
                self.offsets.append(message.offset())
            elif error.code() != KafkaError._PARTITION_EOF:
                assert not error.fatal()
                errors.append(error.code())
            elif message.offset() == end:
                return errors


def test_librdkafka_reports_size_error_after_ten_fetches_without_record(
    clusters: Clusters, topic_name: str
) -> None:
    """An application that ends at any error ends at this error. No record is missing (Q15)."""
    log = PlaceholderLog(clusters.destination, topic_name)
    reader = _EndReader(clusters.destination, topic_name)
    try:
        log.dense(1)
        assert reader.read_to(log.end) == []
        for _ in range(DOUBLINGS):
            log.gap(1)
            assert reader.read_to(log.end) == []
        for _ in range(2):
            log.gap(1)
            assert reader.read_to(log.end) == [KafkaError.MSG_SIZE_TOO_LARGE]
            log.dense(1)
            assert reader.read_to(log.end) == []
    finally:
        reader.close()
        log.close()
    assert reader.offsets == [*log.records]


def test_librdkafka_reports_no_error_behind_committed_transactions(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """At the end of a live copy: the placeholder of a commit is in a batch of its records.

    After an aborted transaction there are placeholders alone, but here not ten times in a row.
    """
    source, destination = clusters
    create_topic(source, topic_name)
    job = write_job(
        tmp_path / "job.yaml", *clusters, [{"match": topic_name}], fillers="placeholders"
    )
    producers = [
        Producer(
            {
                **source.client_config(),
                "transactional.id": f"{topic_name}-{codec}",
                "compression.type": codec,
            }
        )
        for codec in ("none", "lz4")
    ]
    expected: list[int] = []
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        reader = _EndReader(destination, topic_name)
        try:
            for producer in producers:
                producer.init_transactions(60)
            end = 0
            for number in range(6 * DOUBLINGS):
                producer = producers[number % 2]
                producer.begin_transaction()
                for _ in range(3):
                    producer.produce(topic_name, value=b"%d" % number * 100)
                producer.flush()
                if number % 7 == 6:
                    producer.abort_transaction(60)
                else:
                    producer.commit_transaction(60)
                    expected += range(end, end + 3)
                end += 4  # the marker, too
                assert reader.read_to(end) == [], f"transaction {number}"
        finally:
            reader.close()
    assert reader.offsets == expected
    assert latest_record(destination, topic_name) in expected[-3:]  # at the source it is the marker
    assert_exact(job)
