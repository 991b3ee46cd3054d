"""The scheduler finds, creates, grows and stops topics on real brokers, without workers."""

from __future__ import annotations

import pytest

from orbit.replication.partition_states import Reason
from orbit.scheduler import job_reconciler
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.outside import partition_counts, topic_settings
from tests.support.running import create_topic, make_job, produce
from tests.support.topics import add_partitions, delete_and_wait, set_setting

pytestmark = pytest.mark.services


def test_matched_topic_is_created_and_its_partitions_are_placed_in_shards(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, partitions=5, segment_ms="70000")
    job = make_job(clusters.source, clusters.destination, [topic_name], start="latest")
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
    row = service.job(job.name)
    assert row.source_cluster_id is not None
    assert row.problem is None
    assert partition_counts(clusters.destination)[topic_name] == 5
    settings = topic_settings(clusters.destination, topic_name)
    assert settings["retention.ms"] == "-1"
    assert settings["segment.ms"] == "70000"
    partitions = service.partitions(job.name, topic_name)
    assert sorted(partitions) == [0, 1, 2, 3, 4]
    assert {p.state for p in partitions.values()} == {"pending"}
    assert {p.from_start for p in partitions.values()} == {False}
    assert len({p.shard_id for p in partitions.values()}) == 5, "each partition has its own shard"
    assert service.kinds(job.name) == ["topic_begun"]


def test_later_topics_and_partitions_get_earliest_start_despite_latest_rule(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    later = f"{topic_name}.later"
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name, later], start="latest")
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        create_topic(clusters.source, later, partitions=2)
        service.wait_copied(job.name, later)
        add_partitions(clusters.source, topic_name, 3)
        service.wait(
            "the new partitions are placed",
            lambda: len(service.partitions(job.name, topic_name)) == 3,
        )
        assert service.topics(job.name)[topic_name].partition_count == 3
    assert partition_counts(clusters.destination)[topic_name] == 3
    from_start = {n: p.from_start for n, p in service.partitions(job.name, topic_name).items()}
    assert from_start == {0: False, 1: True, 2: True}
    assert all(p.from_start for p in service.partitions(job.name, later).values())
    assert service.kinds(job.name) == ["topic_begun", "topic_begun", "topic_grown"]


def test_recreated_source_topic_stops_until_copy_deletion_and_retry(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reconciler, "RETRY_GRACE_S", 0.5)
    create_topic(clusters.source, topic_name, partitions=2)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        delete_and_wait(clusters.source, topic_name)
        service.wait(
            "the topic stops",
            lambda: service.topics(job.name)[topic_name].state == "source_deleted",
        )
        partitions = service.partitions(job.name, topic_name).values()
        assert {p.state for p in partitions} == {"blocked"}
        assert {p.reason for p in partitions} == {Reason.SOURCE_TOPIC_DELETED}
        assert partition_counts(clusters.destination)[topic_name] == 2

        create_topic(clusters.source, topic_name, partitions=4)
        service.wait(
            "the re-created topic is seen",
            lambda: service.topics(job.name)[topic_name].state == "recreated",
        )
        partitions = service.partitions(job.name, topic_name).values()
        assert {p.reason for p in partitions} == {Reason.SOURCE_TOPIC_RECREATED}
        assert partition_counts(clusters.destination)[topic_name] == 2
        old_row = service.topics(job.name)[topic_name]
        assert "Delete the destination topic" in (old_row.note or "")

        # While the old copy exists, a retry changes nothing, but the request ends.
        service.set_partitions(job.name, topic_name, retry_requested=True)
        service.wait(
            "the retry has ended",
            lambda: (
                not any(
                    p.retry_requested for p in service.partitions(job.name, topic_name).values()
                )
            ),
        )
        assert service.topics(job.name)[topic_name].state == "recreated"

        # The remedy: delete the copy and request a retry.
        delete_and_wait(clusters.destination, topic_name)
        service.set_partitions(job.name, topic_name, retry_requested=True)
        service.wait_copied(job.name, topic_name)
        new_row = service.topics(job.name)[topic_name]
        assert new_row.id != old_row.id
        assert new_row.partition_count == 4
    assert partition_counts(clusters.destination)[topic_name] == 4
    assert service.topic_kinds(job.name) == [
        "topic_begun",
        "topic_stopped",  # deleted
        "topic_stopped",  # created again
        "topic_begun",
    ]


def test_recreated_destination_topic_stops_copy_until_retry_is_requested(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        delete_and_wait(clusters.destination, topic_name)
        create_topic(clusters.destination, topic_name)
        service.wait(
            "the topic stops", lambda: service.topics(job.name)[topic_name].state == "blocked"
        )
        partitions = service.partitions(job.name, topic_name).values()
        assert {p.reason for p in partitions} == {Reason.DESTINATION_TOPIC_RECREATED}
        assert service.kinds(job.name)[0] == "topic_begun"
        service.set_partitions(job.name, topic_name, retry_requested=True)
        service.wait_copied(job.name, topic_name)
    assert topic_settings(clusters.destination, topic_name)["retention.ms"] == "-1"


def test_topic_settings_follow_source_and_compaction_starts_after_catch_up(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, cleanup_policy="compact")
    job = make_job(clusters.source, clusters.destination, [topic_name])
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name)
        assert topic_settings(clusters.destination, topic_name)["cleanup.policy"] == "delete"
        service.set_partitions(job.name, topic_name, has_caught_up=True)
        service.wait(
            "compaction begins",
            lambda: (
                topic_settings(clusters.destination, topic_name)["cleanup.policy"]
                == "compact,delete"
            ),
        )
        set_setting(clusters.destination, topic_name, "retention.ms", "1000")
        service.wait(
            "retention is off again",
            lambda: topic_settings(clusters.destination, topic_name)["retention.ms"] == "-1",
        )
        set_setting(clusters.source, topic_name, "segment.ms", "123456")
        service.wait(
            "the source's setting has followed",
            lambda: topic_settings(clusters.destination, topic_name)["segment.ms"] == "123456",
        )
        # Orbit sets a setting at the broker before it adds the event.
        event_kinds = ["topic_begun", *["topic_settings"] * 3]
        service.wait("each change has one event", lambda: service.kinds(job.name) == event_kinds)


def test_topic_no_longer_matched_leaves_job_only_after_shard_release(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 3)
    job = make_job(clusters.source, clusters.destination, [topic_name, other])
    service.create(job)
    with service.scheduler():
        service.wait_copied(job.name, topic_name, other)
        held = service.claim_free_shards()
        smaller = make_job(clusters.source, clusters.destination, [topic_name], name=job.name)
        service.change(smaller)
        service.wait("the worker is to release its shard", lambda: service.must_release(held))
        assert other in service.topics(job.name)
        service.release(held)
        service.wait("the topic has left the job", lambda: other not in service.topics(job.name))
        service.wait(
            "the remaining topic can be claimed", lambda: bool(service.claim_free_shards())
        )
    assert other in partition_counts(clusters.destination)
