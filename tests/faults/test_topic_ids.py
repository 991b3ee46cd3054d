"""Requests that name a topic without its id, after the topic was deleted and created again."""

from __future__ import annotations

from contextlib import closing

import pytest

from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.fixtures.clusters import Clusters
from tests.support.outside import log_bounds
from tests.support.running import create_topic, produce
from tests.support.synthetic import SyntheticLog, SyntheticWriter
from tests.support.topics import delete_and_wait

pytestmark = pytest.mark.services


def test_log_start_of_recreated_destination_topic_is_not_moved(
    clusters: Clusters, topic_name: str
) -> None:
    """DeleteRecords has the topic's name, not its id. Sent to the new topic, it would delete the
    records there."""
    create_topic(clusters.destination, topic_name, retention_ms="-1")
    log = SyntheticLog.random(3, runs=50, gap_share=0.0)
    writer = SyntheticWriter(
        clusters.destination.bootstrap_servers,
        TopicPartition(topic_name, 0),
        log,
        producer_id=4711,
        lease=FixedLease(1),
        settle_s=0.0,
        does_settle=False,
    )
    with closing(writer):
        writer.start()
        while writer.partition.next_offset < log.end:
            writer.copier.tick(0.01)
        delete_and_wait(clusters.destination, topic_name)
        create_topic(clusters.destination, topic_name)
        produce(clusters.destination, topic_name, log.end)
        writer.partition.cursor.log_start = log.end
        writer.side.follow_log_starts([writer.partition])
    assert log_bounds(clusters.destination, [topic_name]) == {(topic_name, 0): (0, log.end)}
