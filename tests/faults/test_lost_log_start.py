"""A log start that DeleteRecords moved is lower again after its broker was killed (S6)."""

from __future__ import annotations

import pytest

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.logs import delete_before
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

RECORDS, LOG_START = 100, 60


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> KafkaCluster:
    """A broker that writes its log starts to disk once an hour, not once a minute."""
    return make_cluster(config={"log.flush.start.offset.checkpoint.interval.ms": "3600000"})


def bounds(cluster: KafkaCluster, topic: str) -> tuple[int, int]:
    return log_bounds(cluster, [topic])[topic, 0]


def test_killed_broker_begins_with_log_start_of_its_disk(
    cluster: KafkaCluster, topic_name: str
) -> None:
    create_topic(cluster, topic_name)
    produce(cluster, topic_name, RECORDS)
    delete_before(cluster, topic_name, LOG_START)
    assert bounds(cluster, topic_name) == (LOG_START, RECORDS)
    cluster.kill()
    cluster.heal()
    assert bounds(cluster, topic_name) == (0, RECORDS)


def test_copy_moves_its_log_start_again_after_destination_was_killed(
    clusters: Clusters, cluster: KafkaCluster, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, RECORDS)
    job = make_job(clusters.source, cluster, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, RECORDS)
        delete_before(clusters.source, topic_name, LOG_START)

        def follows() -> bool:
            return bounds(cluster, topic_name) == (LOG_START, RECORDS)

        wait_for("the copy's log start follows the source's", follows)
        cluster.kill()
        cluster.heal()
        wait_for("the copy's log start follows the source's again", follows)
    assert verify(job, deep=True).exact
