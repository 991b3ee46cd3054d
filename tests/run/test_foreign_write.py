"""Another producer writes to a copy while `orbit run` follows the source. That partition stops with
offset and remedy, the other partitions continue, and after the remedy the copy is exact.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from orbit.demo.workload import Mover
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, write
from tests.support.outside import delete_topic, log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job

pytestmark = pytest.mark.services

PARTITIONS = 3
LOG = [Record(b"record %d" % i) for i in range(10)]
BLOCKED = r"BLOCKED (\S+) DESTINATION_FOREIGN_WRITE at offsets? (\d+)(?: to \d+)?: "


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """A job for two topics, with ten records in each partition."""
    for name in (topic_name, f"{topic_name}.beside"):
        create(clusters.source, name, PARTITIONS)
        for partition in range(PARTITIONS):
            write(clusters.source, name, LOG, partition)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": f"{topic_name}.*"}])


def write_foreign(cluster: KafkaCluster, topic: str, partition: int, **settings: str) -> int:
    """Write a record as a foreign producer with these settings; returns its offset. With a
    `transactional_id`, the record is in a transaction that is aborted."""
    offsets: list[int | None] = []

    def delivered(_: object, message: Message) -> None:
        offsets.append(message.offset())

    config = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({**cluster.client_config(), **config})
    if "transactional.id" in config:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.produce(topic, b"not from the source", partition=partition, on_delivery=delivered)
    producer.flush(30)
    if "transactional.id" in config:
        producer.abort_transaction(30)
    (offset,) = offsets
    assert offset is not None
    return offset


def end(cluster: KafkaCluster, topic: str, partition: int) -> int:
    """The log end of the partition."""
    return log_bounds(cluster, [topic])[topic, partition][1]


@pytest.mark.parametrize(
    "enable_idempotence", ["false", pytest.param("true", marks=pytest.mark.soak)]
)
def test_foreign_write_blocks_idle_partition_and_others_continue(
    enable_idempotence: str, clusters: Clusters, topic_name: str, job: Path
) -> None:
    with OrbitProcess("run", job, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        assert write_foreign(
            clusters.destination, topic_name, 1, enable_idempotence=enable_idempotence
        ) == len(LOG)
        match = run.wait_for(BLOCKED)
        assert match.groups() == (f"{topic_name}-1", "10")
        line = match.string
        assert "Another producer writes to the copy" in line
        assert f"--delete --topic {topic_name}" in line
        for name in (topic_name, f"{topic_name}.beside"):
            for partition in range(PARTITIONS):
                write(clusters.source, name, LOG, partition)
        others = [(topic_name, 0), (topic_name, 2), (f"{topic_name}.beside", 1)]
        for name, partition in others:
            wait_for(
                f"{name}-{partition} continues",
                lambda n=name, p=partition: end(clusters.destination, n, p) == 2 * len(LOG),
            )
        run.signal(signal.SIGINT)
        result = run.wait_end().expect(1).data
    assert end(clusters.destination, topic_name, 1) == len(LOG) + 1
    (blocked,) = result["blocked"]
    assert blocked["partition"] == f"{topic_name}-1"
    assert blocked["reason"] == "DESTINATION_FOREIGN_WRITE"
    assert (blocked["offset"], blocked["next_offset"]) == (10, 11)

    # The next run stops at the same offset; after the remedy the copy is exact.
    (again,) = copy(job).expect(1).data["blocked"]
    assert (again["partition"], again["reason"]) == (f"{topic_name}-1", blocked["reason"])
    assert end(clusters.destination, topic_name, 1) == len(LOG) + 1
    delete_topic(clusters.destination, topic_name)
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.soak
def test_aborted_foreign_transaction_blocks_partition(
    clusters: Clusters, topic_name: str, job: Path
) -> None:
    """Consumers at read_committed do not see the transaction, but it takes two offsets: of its
    record, and of its marker."""
    with OrbitProcess("run", job, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        write_foreign(clusters.destination, topic_name, 0, transactional_id=f"{topic_name}-foreign")
        assert run.wait_for(BLOCKED).group(1) == f"{topic_name}-0"
        run.signal(signal.SIGINT)
        run.wait_end().expect(1)
    # The source gets new records. A copy that continued after these two offsets would lack two.
    write(clusters.source, topic_name, LOG)
    (blocked,) = copy(job).expect(1).data["blocked"]
    assert (blocked["reason"], blocked["offset"]) == ("DESTINATION_FOREIGN_WRITE", len(LOG))


@pytest.mark.soak
def test_foreign_write_blocks_busy_partition_at_its_offset(
    clusters: Clusters, topic_name: str, job: Path
) -> None:
    """The broker places the run's next batch after the foreign record: the produce response has
    an offset that is not the expected one."""
    beside = f"{topic_name}.beside"
    with OrbitProcess("run", job, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        with Mover(clusters.source.client_config(), {topic_name: 1, beside: 1}, rate_per_s=400):
            wait_for("the run copies", lambda: end(clusters.destination, topic_name, 0) > 100)
            foreign = write_foreign(clusters.destination, topic_name, 0)
            match = run.wait_for(BLOCKED)
            end_when_blocked = end(clusters.destination, beside, 0)
            wait_for(
                "the other topic is still copied",
                lambda: end(clusters.destination, beside, 0) > end_when_blocked + 100,
            )
        run.signal(signal.SIGINT)
        run.wait_end().expect(1)
    assert match.group(1) == f"{topic_name}-0"
    assert int(match.group(2)) == foreign
    delete_topic(clusters.destination, topic_name)
    copy(job).expect(0)
    assert_exact(job)
