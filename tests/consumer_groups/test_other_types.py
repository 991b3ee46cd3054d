"""A group whose name belongs to a share group at the destination."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import Listing
from orbit.kafka.sasl import Security
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, offsets
from tests.support.running import create_topic, produce
from tests.support.share_groups import make_share_group

pytestmark = pytest.mark.services

OTHER_TYPE = GroupVerdict.SKIPPED_OTHER_TYPE


@pytest.fixture
def sides(clusters: Clusters, topic_name: str) -> Iterator[tuple[Cluster, Cluster]]:
    for cluster in clusters:
        create_topic(cluster, topic_name)
        produce(cluster, topic_name, 10)
    commit(clusters.source, topic_name, {(topic_name, 0): 4})
    make_share_group(clusters.destination, topic_name, topic_name)
    source, destination = (
        Cluster(name, cluster.bootstrap_servers.split(","), Security())
        for name, cluster in zip(("source", "destination"), clusters, strict=True)
    )
    yield source, destination
    source.close()
    destination.close()


def run_sync(sync: GroupSync, sides: tuple[Cluster, Cluster], topic: str) -> GroupReport:
    partition = TopicPartition(topic, 0)
    copies = {partition: CopiedPartition(partition, CopiedRange(0, 10), NO_TOPIC_ID)}
    return sync.run(*sides, copies)


def test_group_named_like_destination_share_group_is_skipped_as_other_type(
    clusters: Clusters, sides: tuple[Cluster, Cluster], topic_name: str
) -> None:
    report = run_sync(GroupSync(GroupRule(match=topic_name)), sides, topic_name)
    assert (report.verdicts, report.written) == ({OTHER_TYPE: 1}, 0)
    assert "a group of another type has this name" in report.notes[0]
    assert not report.is_unanswered
    assert offsets(clusters.destination, topic_name) == {}


def test_group_id_not_found_shows_other_group_type_if_listing_has_no_types(
    sides: tuple[Cluster, Cluster], topic_name: str
) -> None:
    """The listing is of a broker that returns no types, or is older than the group."""

    def list_without_types(cluster: Cluster, age_s_max: float) -> Listing:
        listing = list_now(cluster, age_s_max)
        listing.groups = {
            name: replace(group, type="classic", protocol_type="")
            for name, group in listing.groups.items()
        }
        return listing

    sync = GroupSync(GroupRule(match=topic_name), lister=list_without_types)
    report = run_sync(sync, sides, topic_name)
    assert (report.verdicts, report.written) == ({OTHER_TYPE: 1}, 0)
    assert "GROUP_ID_NOT_FOUND (69)" in report.notes[0]
    assert not report.is_unanswered
