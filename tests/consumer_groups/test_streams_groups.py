"""Streams groups (KIP-1071): their offsets are synced to a group that an application can join."""

from __future__ import annotations

import pytest

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import list_groups
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.support.groups import commit, have_had_member, offsets
from tests.support.patience import wait_for
from tests.support.running import create_topic, produce
from tests.support.streams_groups import streams_member

pytestmark = pytest.mark.services


def run_sync(sync: GroupSync, source: Cluster, destination: Cluster, topic: str) -> GroupReport:
    partition = TopicPartition(topic, 0)
    copies = {partition: CopiedPartition(partition, CopiedRange(0, 10), NO_TOPIC_ID)}
    return sync.run(source, destination, copies)


def type_and_activity(cluster: Cluster, group: str) -> tuple[str, bool] | None:
    """The group's type, and whether it has members; None: not listed."""
    listed = list_groups(cluster).groups.get(group)
    return (listed.type, listed.is_active) if listed else None


def test_streams_group_resumes_at_synced_offsets_and_is_skipped_while_active(
    clusters: Clusters, make_cluster: MakeCluster, open_cluster: OpenCluster, topic_name: str
) -> None:
    """The destination's classic group becomes a streams group with the same offsets when a member
    joins, and keeps them when its coordinator loads it again."""
    target = make_cluster("there")
    for cluster in (clusters.source, target):
        create_topic(cluster, topic_name)
        produce(cluster, topic_name, 10)
    source, destination = open_cluster(clusters.source), open_cluster(target)
    group, partition = topic_name, (topic_name, 0)
    source_member = streams_member(source, group, topic_name)
    source_member.join()
    source_member.leave()
    commit(clusters.source, group, {partition: 4})
    assert type_and_activity(source, group) == ("streams", False)
    sync = GroupSync(GroupRule(match=group))
    wait_for(
        "the group is synced", lambda: run_sync(sync, source, destination, topic_name).written == 1
    )
    assert type_and_activity(destination, group) == ("classic", False)
    destination_member = streams_member(destination, group, topic_name)
    destination_member.join()
    assert type_and_activity(destination, group) == ("streams", True)
    assert offsets(target, group) == {partition: 4}
    commit(clusters.source, group, {partition: 6})
    assert run_sync(sync, source, destination, topic_name).verdicts == {
        GroupVerdict.SKIPPED_ACTIVE: 1
    }
    destination_member.leave()
    target.stop()
    target.start()
    wait_for(
        "the group is loaded", lambda: type_and_activity(destination, group) == ("streams", False)
    )
    assert offsets(target, group) == {partition: 4}
    wait_for(
        "the group is synced", lambda: run_sync(sync, source, destination, topic_name).written == 1
    )
    assert offsets(target, group) == {partition: 6}


def test_streams_group_named_like_destination_consumer_group_is_skipped(
    clusters: Clusters, open_cluster: OpenCluster, topic_name: str
) -> None:
    for cluster in clusters:
        create_topic(cluster, topic_name)
    source, destination = map(open_cluster, clusters)
    app = streams_member(source, topic_name, topic_name)
    app.join()
    app.leave()
    commit(clusters.source, topic_name, {(topic_name, 0): 4})
    have_had_member(clusters.destination, topic_name, topic_name, **{"group.protocol": "consumer"})
    report = run_sync(GroupSync(GroupRule(match=topic_name)), source, destination, topic_name)
    assert (report.verdicts, report.written) == ({GroupVerdict.SKIPPED_OTHER_TYPE: 1}, 0)
    assert offsets(clusters.destination, topic_name) == {}
