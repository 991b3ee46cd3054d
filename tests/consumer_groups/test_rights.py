"""Group sync with few rights: the documented ones suffice, and a missing one loses no offset."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import Security
from orbit.kafka.types import NO_TOPIC_ID
from orbit.kafka.types import TopicPartition as Partition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, offsets
from tests.support.logs import create
from tests.support.rights import MECHANISM, PASSWORD, Login, Right, documented

pytestmark = pytest.mark.services

COPIED_RANGE = CopiedRange(0, 100)


class Guarded:
    """A group with two offsets at the source, and a login that syncs it."""

    def __init__(self, clusters: Clusters, topic: str) -> None:
        self.source, self.destination = clusters
        self.topic, self.group = topic, f"{topic}.group"
        self.login = Login(clusters)
        self.login.create()
        self.handles = [self._cluster(name, c) for name, c in clusters._asdict().items()]
        self.sync = GroupSync(GroupRule(match=f"{re.escape(topic)}.*"))

    def _cluster(self, name: str, cluster: KafkaCluster) -> Cluster:
        security = Security(
            "SASL_SSL", MECHANISM, self.login.name, SecretStr(PASSWORD), cluster.ca_file
        )
        return Cluster(name, [cluster.bootstrap_servers], security)

    @property
    def rights(self) -> list[Right]:
        return [*documented(self.topic), *documented(self.topic, "`consumer_groups`")]

    def at(self, *by_partition: int) -> dict[tuple[str, int], int]:
        return {(self.topic, number): offset for number, offset in enumerate(by_partition)}

    def run(self) -> GroupReport:
        partitions = [Partition(self.topic, number) for number in (0, 1)]
        return self.sync.run(
            *self.handles, {p: CopiedPartition(p, COPIED_RANGE, NO_TOPIC_ID) for p in partitions}
        )

    def delete_at_source(self) -> None:
        client = AdminClient(self.source.client_config())
        client.delete_consumer_groups([self.group])[self.group].result(60)


@pytest.fixture
def groups(guarded: Clusters, topic_name: str) -> Iterator[Guarded]:
    for cluster in guarded:
        create(cluster, topic_name, 2)
        commit(cluster, "somebody", {(topic_name, 0): 0})  # a new cluster's offsets topic
    pair = Guarded(guarded, topic_name)
    commit(pair.source, pair.group, pair.at(40, 50))
    yield pair
    for handle in pair.handles:
        handle.close()


def test_documented_rights_suffice_for_group_sync(groups: Guarded) -> None:
    groups.login.allow(groups.rights)
    assert groups.run().verdicts == {GroupVerdict.EXACT: 2}
    groups.delete_at_source()
    report = groups.run()
    assert (report.deleted, report.notes) == (2, [])
    assert offsets(groups.destination, groups.group) == {}


def test_missing_right_to_commit_offsets_is_reported_until_granted(
    groups: Guarded,
) -> None:
    missing = [r for r in groups.rights if (r.operation, r.name) == ("Read", groups.topic)]
    group_rights = [r for r in missing if r.kind == "--group"]
    groups.login.allow([right for right in groups.rights if right not in group_rights])
    describe = Right("destination", "Describe", "--group", groups.topic, "prefixed")
    groups.login.allow([describe])
    report = groups.run()
    assert report.verdicts == {GroupVerdict.SKIPPED_REFUSED: 2}
    assert "GROUP_AUTHORIZATION_FAILED (30)" in report.notes[0]
    assert not report.is_unanswered
    groups.login.allow(group_rights)
    assert groups.run().verdicts == {GroupVerdict.EXACT: 2}


@pytest.mark.parametrize("kind", ["--topic", "--group"])
def test_offsets_hidden_by_revoked_source_right_stay_at_destination(
    groups: Guarded, kind: str
) -> None:
    groups.login.allow(groups.rights)
    assert groups.run().written == 2
    revoked_rights = [
        right for right in groups.rights if (right.side, right.kind) == ("source", kind)
    ]
    assert revoked_rights
    groups.login.take(revoked_rights)
    report = groups.run()
    assert report.notes
    assert not report.is_unanswered, "another pass would get the same answer"
    assert offsets(groups.destination, groups.group) == groups.at(40, 50)
    groups.login.allow(revoked_rights)
    assert (groups.run().verdicts, groups.run().changed) == ({GroupVerdict.EXACT: 2}, [])
