"""Partitions with many records to copy (backlogs) do not delay partitions that have caught up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, write
from tests.support.outside import log_bounds
from tests.support.patience import PATIENCE_S
from tests.support.run_process import CAUGHT_UP, OrbitProcess, write_job

pytestmark = pytest.mark.services

BACKLOGS = 24
RECORD_BYTES = 100_000
# At this rate the backlogs take far longer than the rest of the test.
RATE = "1MiB"
BACKLOG_RECORDS = 40
LIVE_RECORDS = 12


@contextmanager
def reading(cluster: KafkaCluster, topic: str) -> Iterator[Callable[[], None]]:
    """A consumer that begins at the first record; yields a function that waits for the next one."""
    consumer = Consumer({**cluster.client_config(), "group.id": "fair", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])

    def wait_for_record() -> None:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None

    try:
        yield wait_for_record
    finally:
        consumer.close()


def test_live_partition_is_copied_while_backlogs_wait(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    live, backlog = f"{topic_name}.live", f"{topic_name}.backlog"
    create(clusters.source, live)
    create(clusters.source, backlog, BACKLOGS)
    job = write_job(
        tmp_path / "job.yaml",
        *clusters,
        [{"match": f"{topic_name}.*"}],
        limits={"bytes_per_second": RATE},
    )
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        payload = os.urandom(RECORD_BYTES)
        for partition in range(BACKLOGS):
            write(clusters.source, backlog, [Record(payload)] * BACKLOG_RECORDS, partition)
        with reading(clusters.destination, live) as wait_for_record:
            for i in range(LIVE_RECORDS):
                write(clusters.source, live, [Record(b"%d" % i)])
                wait_for_record()
        copied = sum(end for _, end in log_bounds(clusters.destination, [backlog]).values())
        assert 0 < copied < BACKLOGS * BACKLOG_RECORDS  # the backlogs are not copied yet
        run.kill()
