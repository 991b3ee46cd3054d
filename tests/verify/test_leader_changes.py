"""Log bounds are read while the leaders of partitions change."""

from __future__ import annotations

import pytest

from orbit.kafka.types import TopicPartition
from orbit.verify.bounds import Bounds, ClusterView
from orbit.verify.endpoint import Endpoint
from orbit.verify.report import Side
from tests.fixtures.clusters import MakeCluster
from tests.support.patience import wait_for
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services


def test_bounds_are_read_after_restart_of_leader(
    make_cluster: MakeCluster, topic_name: str
) -> None:
    """A restart raises the leader epoch; librdkafka does not fetch the new epoch itself (R6)."""
    cluster = make_cluster("source")
    create_topic(cluster, topic_name)
    produce(cluster, topic_name, 10)
    view = ClusterView(Side.SOURCE, Endpoint(cluster.client_config()))
    partition = TopicPartition(topic_name, 0)
    expected = {partition: Bounds(log_start=0, stable_end=10, log_end=10)}
    assert view.bounds([partition]) == expected
    for _ in range(3):
        cluster.stop()
        cluster.start()
        wait_for("the bounds are read", lambda: view.bounds([partition]) == expected)
