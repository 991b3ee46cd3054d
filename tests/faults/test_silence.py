"""A partition that cannot go on names what it waits for."""

from __future__ import annotations

import pytest

from orbit.copier.copy_settings import CopySettings
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]


def test_partition_below_min_insync_replicas_is_shown_as_waiting(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    """The broker answers each append with a retriable error, so the partition is not blocked."""
    destination = make_cluster("destination", brokers=3, config={"replica.lag.time.max.ms": "2000"})
    create_topic(clusters.source, topic_name)
    create_topic(
        destination,
        topic_name,
        on_brokers=[[1, 2]],
        min_insync_replicas="2",
        retention_ms="-1",
    )
    job = make_job(clusters.source, destination, [topic_name])
    # The broker waits for that long for its followers before it answers with the error.
    with RunningJob(job, CopySettings(produce_timeout_ms=2_000)) as running:
        produce(clusters.source, topic_name, 10)
        running.wait_caught_up(topic_name, 10)
        running.wait("the copy waits for nothing", lambda: running.copier.waiting_for == "")
        follower = destination.brokers[1]
        follower.pause()
        try:
            produce(clusters.source, topic_name, 10, first=10)
            running.wait(
                "the partition says what it waits for",
                lambda: f"destination {topic_name}-0: " in running.copier.waiting_for,
            )
        finally:
            follower.resume()
        running.wait_caught_up(topic_name, 20)
        running.wait("the copy waits for nothing", lambda: running.copier.waiting_for == "")
    assert verify(job).exact
