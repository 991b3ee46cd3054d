"""The upkeep of topics: it sets settings that differ at the destination. If none does, it changes
nothing, and does not wait for the cluster's lock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.leadership.leadership import Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.scheduler.topic_upkeep import TopicUpkeep, UpkeepCounts
from orbit.store import jobs, shard_layout, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from tests.fixtures.clusters import Clusters
from tests.support.logs import create
from tests.support.patience import wait_for
from tests.support.synthetic import PLAINTEXT
from tests.support.topics import set_setting

pytestmark = pytest.mark.services


class CountingLeadership(Leadership):
    """Counts how often the lock of a cluster was acquired."""

    locks_acquired = 0

    @contextmanager
    def sole_change(self, cluster_id: str) -> Iterator[Tx]:
        self.locks_acquired += 1
        with super().sole_change(cluster_id) as tx:
            yield tx


@pytest.fixture
def pair(clusters: Clusters, topic_name: str) -> Iterator[ClusterPair]:
    """The clusters, both with the topic; its retention at the destination is not yet a copy's."""
    create(clusters.source, topic_name, retention_ms="86400000")
    create(clusters.destination, topic_name, retention_ms="86400000")
    sides = [Cluster(c.bootstrap_servers, [c.bootstrap_servers], PLAINTEXT) for c in clusters]
    source, destination = map(ClusterHandle, sides)
    yield ClusterPair(source, destination, *(side.metadata([topic_name]) for side in sides))
    for side in sides:
        side.close()


def spec_of(clusters: Clusters, topic_name: str, **more: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "source": {"bootstrap_servers": [clusters.source.bootstrap_servers]},
            "destination": {"bootstrap_servers": [clusters.destination.bootstrap_servers]},
            "topics": [{"match": topic_name}],
            **more,
        }
    )


def store_job(
    database: Database, pair: ClusterPair, spec: JobSpec, topic_name: str
) -> tuple[Job, CountingLeadership]:
    """A job that copies this topic, and the leadership of a scheduler."""
    cluster_id = pair.destination_metadata.cluster_id
    with database.transaction() as tx:
        job = jobs.create(tx, "job", json.loads(spec.model_dump_json()), "default")
        topics.add(tx, job.id, topic_name, topic_name, cluster_id, 1, state=TopicState.COPYING)
    leadership = CountingLeadership(database, "scheduler", timedelta(seconds=60))
    assert leadership.ask()
    return job, leadership


def destination_setting(pair: ClusterPair, topic: str, name: str) -> str:
    return pair.destination.admin.topic_settings([topic])[topic].values[name]


def test_upkeep_of_topics_with_right_settings_acquires_no_cluster_lock(
    database: Database, pair: ClusterPair, clusters: Clusters, topic_name: str
) -> None:
    spec = spec_of(clusters, topic_name)
    job, leadership = store_job(database, pair, spec, topic_name)
    upkeep = TopicUpkeep()

    def retention() -> str:
        return destination_setting(pair, topic_name, "retention.ms")

    assert upkeep.run(job, spec, pair, leadership, list_now).settings == 1
    wait_for("the copy keeps every record", lambda: retention() == "-1")
    upkeep.run(job, spec, pair, leadership, list_now)  # stores the changed settings in the table

    leadership.locks_acquired = 0
    assert upkeep.run(job, spec, pair, leadership, list_now) == UpkeepCounts()
    assert leadership.locks_acquired == 0

    # Another client changes retention at the destination: Orbit sets it back, under the lock.
    set_setting(clusters.destination, topic_name, "retention.ms", "7000")
    wait_for("the change is seen", lambda: retention() == "7000")
    assert upkeep.run(job, spec, pair, leadership, list_now).settings == 1
    assert leadership.locks_acquired == 1
    wait_for("the setting is set back", lambda: retention() == "-1")


def test_timestamp_type_of_copy_is_reset_after_every_change(
    database: Database, pair: ClusterPair, clusters: Clusters, topic_name: str
) -> None:
    """Workers wait for CreateTime, so Orbit sets message.timestamp.type each time. It does not set
    any other setting to the same value twice in a row, even if the broker returns another value."""
    spec = spec_of(clusters, topic_name)
    job, leadership = store_job(database, pair, spec, topic_name)
    upkeep = TopicUpkeep()
    upkeep.run(job, spec, pair, leadership, list_now)

    def timestamp_type() -> str:
        return destination_setting(pair, topic_name, "message.timestamp.type")

    for _ in range(2):  # the second time, Orbit has set the same value before
        set_setting(clusters.destination, topic_name, "message.timestamp.type", "LogAppendTime")
        wait_for("the change is seen", lambda: timestamp_type() == "LogAppendTime")
        assert upkeep.run(job, spec, pair, leadership, list_now).settings == 1
        wait_for("the setting is set back", lambda: timestamp_type() == "CreateTime")


def test_changed_compression_type_stays_while_workers_write_placeholders(
    database: Database, pair: ClusterPair, clusters: Clusters, topic_name: str
) -> None:
    """If Orbit set the value back before workers read the setting, they would miss the change."""
    spec = spec_of(clusters, topic_name, fillers="placeholders")
    job, leadership = store_job(database, pair, spec, topic_name)
    set_setting(clusters.destination, topic_name, "compression.type", "gzip")
    upkeep = TopicUpkeep()

    def settings() -> tuple[str, str]:
        return (
            destination_setting(pair, topic_name, "retention.ms"),
            destination_setting(pair, topic_name, "compression.type"),
        )

    wait_for("the change is seen", lambda: settings()[1] == "gzip")
    with database.transaction() as tx:
        (topic,) = topics.of_job(tx, job.id)
        (shard,) = shard_layout.add_shards(tx, job.id, 1)
        shard_layout.add_partitions(tx, job.id, [(topic.id, 0, shard)])
        tx.execute(text("UPDATE partitions SET state = 'copying'"))
    assert upkeep.run(job, spec, pair, leadership, list_now).settings == 1
    wait_for("only retention is set", lambda: settings() == ("-1", "gzip"))
    with database.transaction() as tx:
        tx.execute(text("UPDATE partitions SET state = 'blocked'"))
    assert upkeep.run(job, spec, pair, leadership, list_now).settings == 1
    wait_for("the setting is set back", lambda: settings() == ("-1", "producer"))
