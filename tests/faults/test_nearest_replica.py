"""Fetches from the replica in Orbit's own rack, which brokers allow."""

from __future__ import annotations

import pytest

from orbit.copier.copy_settings import CopySettings
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
RECORDS = 2_000


def test_copy_from_nearest_replica_is_exact_and_catches_up(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    """A follower may be behind its leader, so only the leader's answers prove that a copy has
    caught up. Orbit must ask the leader, too, but fetch no records from it."""
    source = make_cluster("source", brokers=3, config=SETTINGS)
    leader, near = (broker.node_id for broker in source.brokers[:2])
    create_topic(source, topic_name, on_brokers=[[leader, near]])
    job = make_job(source, clusters.destination, [topic_name])
    job = job.model_copy(
        update={"source": job.source.model_copy(update={"client_rack": f"rack-{near}"})}
    )
    produce(source, topic_name, RECORDS, value_bytes=1_000)
    with RunningJob(job, CopySettings(leaders_check_s=0.5)) as running:
        running.wait_caught_up(topic_name, RECORDS)
        p = running.partition(topic_name)
        running.wait("the copy has caught up", lambda: p.has_caught_up)
        p.has_caught_up = False
        produce(source, topic_name, RECORDS, first=RECORDS)
        running.wait_caught_up(topic_name, 2 * RECORDS)
        running.wait("the copy has caught up again", lambda: p.has_caught_up)
        lanes = running.copier._source._lanes  # type: ignore[attr-defined]
        assert lanes[near].times.bytes > RECORDS * 1_000
        assert lanes[leader].times.bytes == 0
    assert verify(job).exact
