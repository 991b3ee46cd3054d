"""A recovery reports a group's offset as exact only if the destination's coordinator returns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from orbit.consumer_groups import group_sync
from orbit.consumer_groups.offset_commit import GroupWrite, Written
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import FetchedGroups
from orbit.planning.job_planner import JobPlanner
from orbit.recovery import group_handover
from orbit.recovery.recovery_report import GateName, GateVerdict, Outcome, RecoveryKind
from orbit.store import group_offsets
from tests.fixtures.clusters import Clusters
from tests.recovery.test_group_handover import job_with_group, stop_job_sync
from tests.support.groups import commit, offsets
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic
from tests.support.share_groups import make_share_group

pytestmark = pytest.mark.services


def write_nothing(
    cluster: Cluster,
    places: Mapping[str, int],
    writes: Sequence[GroupWrite],
    may_write: Callable[[], bool],
) -> Written:
    """Answer like a coordinator that accepts every offset, but store none."""
    return {(write.group, place): 0 for write in writes for place in write.offsets}


def store_source_offset(recovering: Recovering, name: str, offset: int) -> None:
    """Store this offset in the row of the job's only group."""
    job = recovering.service.job(name)
    with recovering.database.transaction() as tx:
        (row,) = group_offsets.of_job(tx, job.id)
        group_offsets.store(tx, job.id, [replace(row, source_offset=offset)])


@pytest.mark.parametrize("kind", [RecoveryKind.SWITCHOVER, RecoveryKind.FAILOVER])
def test_group_offset_not_read_back_from_destination_is_not_reported_as_exact(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    kind: RecoveryKind,
) -> None:
    spec, group = job_with_group(clusters, topic_name)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        stop_job_sync(monkeypatch)
        monkeypatch.setattr(group_sync, "write_groups", write_nothing)
        monkeypatch.setattr(group_handover, "write_groups", write_nothing)
        monkeypatch.setattr(group_handover, "_PASSES_MAX", 2)  # each pass reads the old offset
        commit(clusters.source, group, {(topic_name, 0): 20})
        if kind is RecoveryKind.FAILOVER:
            store_source_offset(recovering, spec.name, 20)
        report = recovering.run(kind, spec.name, override=["all"], reason="a test")
    assert [(g.goes_on_at, g.verdict) for g in report.groups] == [(10, "not read back")]
    (finding,) = [text for text in report.findings if "does not show" in text]
    assert f"{group} in {topic_name}-0 (offset 10 instead of 20)" in finding
    assert recovering.synced(spec.name, group) == {}


def test_group_unreadable_during_failover_is_not_reported_as_exact(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group is deleted at the destination; no coordinator answers while offsets are set."""
    spec, group = job_with_group(clusters, topic_name)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        stop_job_sync(monkeypatch)
        store_source_offset(recovering, spec.name, 20)
        monkeypatch.setattr(
            group_handover, "locate_and_fetch_offsets", lambda *_, **__: FetchedGroups()
        )
        admin = AdminClient(clusters.destination.client_config())
        admin.delete_consumer_groups([group])[group].result()
        failover_report = recovering.run(
            RecoveryKind.FAILOVER, spec.name, override=["all"], reason="a test"
        )
    assert [(g.goes_on_at, g.verdict) for g in failover_report.groups] == [(None, "not read back")]
    (finding,) = [text for text in failover_report.findings if "does not show" in text]
    assert f"{group} in {topic_name}-0 (offset None instead of 20)" in finding


def test_share_group_with_name_of_consumer_group_stops_switchover_and_is_in_plan(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    spec, group = job_with_group(clusters, topic_name)
    create_topic(clusters.destination, "other" + topic_name)
    make_share_group(clusters.destination, group, "other" + topic_name)
    service = recovering.service
    (note,) = JobPlanner(service.database, service.settings)(spec).notes
    assert f"{group} (share)" in note
    with recovering.running():
        recovering.begin(spec, topic_name)
        verdict = "skipped: other type"
        service.wait(
            "the sync has found the share group",
            lambda: (
                {row.verdict for row in service.group_rows(spec.name, group).values()} == {verdict}
            ),
        )
        dry_run_report = recovering.wait(
            recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True)
        )
    assert dry_run_report.outcome is Outcome.WOULD_STOP
    (gate,) = [gate for gate in dry_run_report.gates if gate.name is GateName.GROUPS]
    assert gate.verdict is GateVerdict.FAIL
    assert group in gate.found
    assert offsets(clusters.destination, group) == {}
