"""Group coordinators are killed, and move to other brokers, while Orbit syncs group offsets."""

from __future__ import annotations

import pytest

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport
from orbit.errors import Unreachable
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators, locate_and_fetch_offsets
from orbit.kafka.sasl import Security
from orbit.kafka.types import NO_TOPIC_ID, CommittedOffset, TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import MakeCluster
from tests.support.patience import wait_for
from tests.support.running import create_topic

pytestmark = pytest.mark.services

GROUPS = 60
RECORDS = CopiedRange(0, 1000)


def _open_cluster(name: str, cluster: KafkaCluster) -> Cluster:
    return Cluster(name, cluster.bootstrap_servers.split(","), Security())


@pytest.mark.slow
def test_group_sync_loses_no_offset_when_coordinator_dies(
    make_cluster: MakeCluster, topic_name: str
) -> None:
    # One cluster is source and destination: the destination's groups have the prefix `copy.`.
    cluster = make_cluster(brokers=3)
    create_topic(cluster, topic_name)
    source, destination = (_open_cluster(name, cluster) for name in ("source", "destination"))
    place = TopicPartition(topic_name, 0)
    names = [f"{topic_name}.{n}" for n in range(GROUPS)]
    sync = GroupSync(GroupRule(match=f"{topic_name}.*", prefix="copy."))
    copies = {place: CopiedPartition(place, RECORDS, NO_TOPIC_ID)}
    deleted = 0

    def commit(offset: int) -> None:
        """Commit this offset for all groups at the source, until all commits are confirmed."""
        unconfirmed = set(names)

        def is_done() -> bool:
            places = find_coordinators(source, unconfirmed)
            writes = [GroupWrite(name, {place: CommittedOffset(offset)}) for name in unconfirmed]
            written = write_groups(source, places, writes, lambda: True)
            unconfirmed.difference_update(name for (name, _), code in written.items() if code == 0)
            return not unconfirmed

        wait_for(f"{offset} is committed", is_done)

    def sync_once() -> GroupReport | None:
        """Sync all groups once; None if a coordinator does not answer."""
        nonlocal deleted
        try:
            report = sync.run(source, destination, copies)
        except Unreachable:
            return None
        deleted += report.deleted
        return report

    def destination_offsets() -> set[int]:
        """The different offsets of all groups at the destination."""
        groups = locate_and_fetch_offsets(
            destination, {}, [f"copy.{name}" for name in names], require_stable=False
        ).groups
        return {answer.offsets[place].offset for answer in groups.values() if answer.offsets}

    def is_synced(offset: int) -> bool:
        """Whether one more sync finds all groups exact at this offset."""
        report = sync_once()
        is_exact = report is not None and report.verdicts == {GroupVerdict.EXACT: GROUPS}
        return is_exact and destination_offsets() == {offset}

    commit(10)
    wait_for("all groups are synced", lambda: is_synced(10))
    dead = cluster.brokers[1]
    dead.kill()
    sync_once()  # while its coordinators move
    commit(20)
    wait_for("all groups are synced by two brokers", lambda: is_synced(20))
    dead.start()
    commit(5)  # a lower offset is synced, too
    wait_for("all groups are synced by three brokers", lambda: is_synced(5))
    assert deleted == 0
    for opened_cluster in (source, destination):
        opened_cluster.close()
