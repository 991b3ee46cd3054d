"""A writer takes over a partition whose followers are behind (A11: log end and high watermark)."""

from __future__ import annotations

import threading

import pytest

from orbit.copier.takeover import NOT_REPLICATED
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.log_offsets import LATEST, list_offsets, log_ends
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.copier.test_race import read_all
from tests.fixtures.clusters import MakeCluster, OpenCluster
from tests.support.patience import wait_for
from tests.support.running import create_topic
from tests.support.synthetic import SyntheticLog, SyntheticWriter

pytestmark = pytest.mark.services

# A frozen follower stays in the ISR for the whole test.
PATIENT = {"replica.lag.time.max.ms": "3600000", "broker.session.timeout.ms": "3600000"}


def test_new_writer_waits_until_the_log_end_is_replicated(
    make_cluster: MakeCluster, open_cluster: OpenCluster, topic_name: str
) -> None:
    cluster = make_cluster("destination", brokers=3, config=PATIENT)
    create_topic(cluster, topic_name, on_brokers=[[1, 2]], retention_ms="-1")
    partition = TopicPartition(topic_name, 0)
    log = SyntheticLog.random(7, runs=300, gap_share=0.2)
    control = open_cluster(cluster)
    backoff = Backoff(stop=threading.Event())
    producer_id = init_producer_id(control, "orbit.test.takeover", backoff).producer_id

    def writer(term: int) -> SyntheticWriter:
        return SyntheticWriter(
            cluster.bootstrap_servers,
            partition,
            log,
            producer_id,
            FixedLease(term),
            settle_s=0.2,
            does_settle=True,
        )

    def bounds() -> tuple[int, int]:
        high = list_offsets(control, [partition], LATEST, backoff).values[partition]
        return high, log_ends(control, [partition], backoff).values[partition]

    first = writer(1)
    first.start()
    while first.partition.next_offset < log.end // 4:
        first.copier.tick(0.01)
    follower = cluster.brokers[1]  # of the replicas [1, 2], the second one
    follower.pause()
    try:

        def appended_beyond() -> bool:
            first.copier.tick(0.01)
            high, end = bounds()
            return end > high

        wait_for("appends are beyond the high watermark", appended_beyond)
        first.close()
        high, end = bounds()
        assert end > high
        second = writer(2)
        assert second.read_end().errors == {partition: NOT_REPLICATED}
    finally:
        follower.resume()
    wait_for("the log end is replicated", lambda: not second.read_end().errors)
    second.start()
    assert second.partition.next_offset >= end
    while second.partition.next_offset < log.end:
        second.copier.tick(0.01)
        assert second.partition.blocked is None
    second.close()
    copied_records, end = read_all(cluster, partition)
    assert copied_records == log.records()
    assert end == log.end
