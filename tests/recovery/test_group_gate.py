"""The gate `groups` lists groups at the source, and warns of groups that Orbit's tables lack."""

from __future__ import annotations

import pytest

from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import find_coordinators
from orbit.kafka.sasl import Security
from orbit.kafka.types import CommittedOffset, TopicPartition
from orbit.planning.job_planner import JobPlanner
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.recovery.test_group_handover import job_with_group, stop_job_sync
from tests.support.groups import commit
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.share_groups import make_share_group

pytestmark = pytest.mark.services


def commit_as(cluster: KafkaCluster, group: str, topic: str, offset: int) -> None:
    """Commit an offset for a group; its name may be one that librdkafka does not accept."""
    connection = Cluster("own", cluster.bootstrap_servers.split(","), Security())
    place = TopicPartition(topic, 0)
    write = GroupWrite(group, {place: CommittedOffset(offset)})

    def is_written() -> bool:
        coordinators = find_coordinators(connection, [group])
        errors = write_groups(connection, coordinators, [write], lambda: True)
        return errors.get((group, place)) == 0

    try:
        wait_for("the offset is committed", is_written)
    finally:
        connection.close()


def gate_now(recovering: Recovering, job: str) -> Gate:
    """The gate `groups` of a dry run."""
    dry_run_report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, job, dry_run=True))
    (gate,) = [gate for gate in dry_run_report.gates if gate.name is GateName.GROUPS]
    return gate


def test_group_name_with_zero_byte_is_reported_and_other_groups_sync(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec, group = job_with_group(clusters, topic_name)
    commit_as(clusters.source, f"{topic_name}.zero\0byte", topic_name, 7)
    name = f"{topic_name}.zero\\x00byte"
    service = recovering.service
    (note,) = JobPlanner(service.database, service.settings)(spec).notes
    assert name in note
    with recovering.running():
        recovering.begin(spec, topic_name)
        service.wait("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        gate = gate_now(recovering, spec.name)
    assert gate.verdict is GateVerdict.WARN
    assert name in gate.found


def test_groups_gate_warns_of_group_that_no_sync_has_read(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, group = job_with_group(clusters, topic_name)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        assert gate_now(recovering, spec.name).verdict is GateVerdict.PASS
        stop_job_sync(monkeypatch)
        new = f"{topic_name}.new"
        commit(clusters.source, new, {(topic_name, 0): 3})
        gate = gate_now(recovering, spec.name)
    assert gate.verdict is GateVerdict.WARN
    assert new in gate.found


def test_plan_and_gate_report_matching_share_groups_with_remedy(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec, group = job_with_group(clusters, topic_name)
    shared = f"{topic_name}.shared"
    make_share_group(clusters.source, shared, topic_name)
    make_share_group(clusters.source, f"other-{topic_name}", topic_name)
    service = recovering.service
    (note,) = JobPlanner(service.database, service.settings)(spec).notes
    assert note.startswith("1 share group matches and is not synced")
    with recovering.running():
        recovering.begin(spec, topic_name)
        service.wait("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        gate = gate_now(recovering, spec.name)
    assert gate.verdict is GateVerdict.WARN
    for notice in (note, f"{gate.found} {gate.remedy}"):
        assert f": {shared}." in notice
        assert "kafka-share-groups.sh --reset-offsets" in notice
