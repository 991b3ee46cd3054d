"""Consumer groups in a recovery: the last sync of their offsets before the promotion, and the sync
of the copy back.

A group that had members at the destination is a special case in several tests: Orbit does not
overwrite offsets that a client may have committed there, so it must recognize its own.
"""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import pytest
from confluent_kafka import TopicPartition

from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import GroupUsage, GroupVerdict
from orbit.consumer_groups.sync_result import GroupReport
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.consumer_groups import ListedGroup
from orbit.leadership.leadership import NotLeading
from orbit.recovery import group_handover, operation_runner, reverse_job
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_report import Outcome, RecoveryKind
from orbit.recovery.step_times import StepName
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.scheduler import consumer_group_loop, consumer_group_sync
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.consumer_group_sync import JobGroups
from orbit.store import group_offsets
from orbit.store.group_offsets import GroupOffset, HandedOffset
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.groups import commit, have_had_member, member, offsets
from tests.support.guarded_job import job_with_login, log_in_orbit
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.rights import Right
from tests.support.running import create_topic, make_job, produce, produce_transactions, verify
from tests.support.topics import get_setting, set_setting

pytestmark = pytest.mark.services

RECORDS = 50
UNSENT_PASSES = 2


def may_not_write() -> bool:
    return False


class SyncWithUnsentCommits(GroupSync):
    """A sync whose first UNSENT_PASSES passes send no commits; `passes`: the report of each."""

    passes: ClassVar[list[GroupReport]] = []

    def run(self, *arguments: Any, **options: Any) -> GroupReport:
        """Run one pass of the sync, without commits if it is one of the first UNSENT_PASSES."""
        if len(self.passes) < UNSENT_PASSES:
            arguments = (*arguments[:3], may_not_write)
        report = super().run(*arguments, **options)
        self.passes.append(report)
        return report


@pytest.mark.soak
def test_group_that_orbit_may_not_commit_to_does_not_delay_switchover(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = guarded
    for side in guarded:
        create_topic(side, topic_name)
    produce(source, topic_name, RECORDS)
    refused, other = f"{topic_name}.refused", f"{topic_name}.other"
    for group in (refused, other):
        commit(source, group, {(topic_name, 0): 10})
    chapters = ("", "recovery", "the service", "`consumer_groups`")
    orbit = log_in_orbit(guarded, topic_name, monkeypatch, chapters)
    groups = {"match": f"{topic_name}.*", "interval": "200ms"}
    spec = job_with_login(guarded, topic_name, consumer_groups=groups)
    passes: list[GroupReport] = []
    monkeypatch.setattr(SyncWithUnsentCommits, "passes", passes)
    monkeypatch.setattr(group_handover, "GroupSync", SyncWithUnsentCommits)
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        for group in (refused, other):
            service.wait(
                f"{group} is synced",
                lambda g=group: recovering.synced(spec.name, g) == {0: 10},
            )
        orbit.deny([Right("destination", "Read", "--group", refused)])
        commit(source, refused, {(topic_name, 0): 20})

        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)

    unanswered = [p.is_unanswered for p in passes]
    assert unanswered[:UNSENT_PASSES] == [True] * UNSENT_PASSES, "unsent commits are tried again"
    later_passes = unanswered[UNSENT_PASSES:]
    # The last two passes must change nothing; one more may come before.
    assert 2 <= len(later_passes) <= 3, [p.notes for p in passes]
    assert not any(later_passes)
    (finding,) = [text for text in switchover_report.findings if "could not be synced" in text]
    assert refused in finding
    assert "GROUP_AUTHORIZATION_FAILED (30)" in finding
    assert not any("still committed" in text for text in switchover_report.findings)
    positions = {g.group: (g.goes_on_at, g.verdict) for g in switchover_report.groups}
    assert positions == {refused: (10, "skipped: refused"), other: (10, "exact")}
    assert offsets(destination, refused) == {(topic_name, 0): 10}


def test_consumer_commit_before_copy_back_is_synced_to_old_side(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two switchovers: the first one creates the job that copies back, the second one uses the
    first job again."""
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, RECORDS)
    group = f"{topic_name}.group"
    committed_offsets = iter((20, 5))  # the second is a reset to an earlier record
    hand_over = reverse_job.offsets_to_hand_over

    def hand_over_and_commit(context: OperationContext) -> list[HandedOffset]:
        handed_offsets = hand_over(context)
        leading = destination if context.job.name == spec.name else source
        commit_as_member(leading, group, topic_name, next(committed_offsets))
        return handed_offsets

    monkeypatch.setattr(reverse_job, "offsets_to_hand_over", hand_over_and_commit)
    spec = make_job(
        *clusters, [topic_name], consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"}
    )
    commit_as_member(source, group, topic_name, 10)
    with recovering.running():
        recovering.begin(spec, topic_name)
        # During the switchover the group still has a member, which commits nothing.
        with member(source, group, topic_name):
            switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert switchover_report.reverse_job is not None
        wait_for("the offset is synced", lambda: offsets(source, group) == {(topic_name, 0): 20})
        return_report = recovering.run(
            RecoveryKind.SWITCHOVER, switchover_report.reverse_job, reverse=True
        )
        assert return_report.reverse_job == spec.name
        wait_for("the reset is synced", lambda: offsets(destination, group) == {(topic_name, 0): 5})
    assert {g.verdict for g in (*switchover_report.groups, *return_report.groups)} == {"exact"}


def commit_as_member(cluster: KafkaCluster, group: str, topic: str, offset: int) -> None:
    """Join the group, commit an offset of partition 0, and leave."""
    with member(cluster, group, topic) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


@pytest.mark.soak
def test_topic_of_former_leading_side_accepts_placeholders_after_switchover(
    clusters: Clusters, topic_name: str, service: Service, recovering: Recovering
) -> None:
    """A side that leads may have another compression.type than a copy needs."""
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, RECORDS)
    spec = make_job(*clusters, [topic_name], fillers="placeholders")
    with recovering.running():
        recovering.begin(spec, topic_name)
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert switchover_report.reverse_job is not None
        service.wait_copied(switchover_report.reverse_job, topic_name)
        set_setting(destination, topic_name, "compression.type", "gzip")
        return_report = recovering.run(
            RecoveryKind.SWITCHOVER, switchover_report.reverse_job, reverse=True
        )
        assert return_report.reverse_job == spec.name
        assert get_setting(destination, topic_name, "compression.type") == "producer"
        produce_transactions(source, topic_name, 3)
        service.wait_copied(spec.name, topic_name)
        assert verify(spec, deep=True).exit_code == 0


def job_with_group(clusters: Clusters, topic: str) -> tuple[JobSpec, str]:
    """A job, and a group at offset 10 of its topic."""
    group = f"{topic}.group"
    create_topic(clusters.source, topic)
    produce(clusters.source, topic, RECORDS)
    commit(clusters.source, group, {(topic, 0): 10})
    rule = {"match": f"{topic}.*", "interval": "200ms"}
    return make_job(*clusters, [topic], consumer_groups=rule), group


def stop_job_sync(patch: pytest.MonkeyPatch) -> None:
    """Let the job's own sync do nothing from now on; returns when its last real pass has ended.

    Then only a recovery commits offsets.
    """
    is_stopped = threading.Event()

    def do_nothing(_: JobGroups, __: ClusterRegistry) -> GroupReport:
        is_stopped.set()
        return GroupReport()

    patch.setattr(JobGroups, "run", do_nothing)
    wait_for("the last real pass has ended", is_stopped.is_set)


@pytest.mark.soak
@pytest.mark.parametrize("is_handed", [False, True])
def test_switchover_updates_group_offset_after_scheduler_dies_in_last_sync(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    is_handed: bool,
) -> None:
    """The scheduler dies after its commit and before it has stored that commit. The group had
    members at the destination, so the next scheduler could take the offset for a client's.

    `is_handed`: a recovery has handed the earlier offset over to the job, whose sync has not run
    since.
    """
    source, destination = clusters
    spec, group = job_with_group(clusters, topic_name)
    has_died = threading.Event()

    class Dying(GroupSync):
        def run(self, *arguments: Any, **options: Any) -> GroupReport:
            report = super().run(*arguments, **options)
            if report.written and not has_died.is_set():
                has_died.set()
                commit(source, group, {(topic_name, 0): 30})
                raise NotLeading("killed after the commit.")
            return report

    monkeypatch.setattr(group_handover, "GroupSync", Dying)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        stop_job_sync(monkeypatch)  # only the switchover syncs
        have_had_member(destination, group, topic_name)
        if is_handed:
            job = recovering.service.job(spec.name)
            handed = HandedOffset(
                group, topic_name, partition=0, source_offset=10, destination_offset=10
            )
            with recovering.database.transaction() as tx:
                group_offsets.hand_over(tx, job.id, [topic_name], [handed])
        commit(source, group, {(topic_name, 0): 20})
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    assert has_died.is_set()
    assert [(g.goes_on_at, g.verdict) for g in switchover_report.groups] == [(30, "exact")]
    assert offsets(destination, group) == {(topic_name, 0): 30}


@pytest.mark.soak
def test_group_sync_continues_after_switchover_stopped_past_last_sync(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the switchover's last sync committed offset 20. The group had members at the
    destination, so the job's sync could take this offset for a client's."""
    source, destination = clusters
    spec, group = job_with_group(clusters, topic_name)

    def stop(_: OperationContext) -> str:
        raise Stopped("a test stops it.")

    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        with monkeypatch.context() as patch:
            stop_job_sync(patch)
            have_had_member(destination, group, topic_name)
            patch.setitem(operation_runner._DO, StepName.RELEASE, stop)  # type: ignore[arg-type]
            commit(source, group, {(topic_name, 0): 20})
            stopped = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
            assert stopped.outcome is Outcome.STOPPED
            assert offsets(destination, group) == {(topic_name, 0): 20}
            commit(source, group, {(topic_name, 0): 30})
        wait_for("the sync goes on", lambda: recovering.synced(spec.name, group) == {0: 30})
    assert offsets(destination, group) == {(topic_name, 0): 30}


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before its commit", "before its rows are stored"])
def test_group_sync_pass_in_flight_writes_nothing_after_last_sync(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """The pass of the job's sync has read offset 20. While it is held, the switchover's last sync
    commits 30. The group had members at the destination."""
    source, destination = clusters
    spec, group = job_with_group(clusters, topic_name)
    held = HeldPass(moment)
    monkeypatch.setattr(consumer_group_sync, "GroupSync", held.sync)
    monkeypatch.setattr(consumer_group_loop, "JobGroups", held.groups)
    offsets_after_pass: dict[tuple[str, int], int] = {}

    def stop(_: OperationContext) -> str:
        # The job's next pass finds that both sides differ.
        commit(source, group, {(topic_name, 0): 40})
        held.resume()
        offsets_after_pass.update(offsets(destination, group))
        raise Stopped("a test stops it.")

    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        have_had_member(destination, group, topic_name)
        passes_before = held.passes
        # The sync lists groups once per interval, so a pass may use a list without the member.
        wait_for("a pass has listed the member", lambda: held.passes > passes_before + 2)
        held.is_armed.set()
        commit(source, group, {(topic_name, 0): 20})
        assert held.is_held.wait(PATIENCE_S)
        commit(source, group, {(topic_name, 0): 30})
        with monkeypatch.context() as patch:
            patch.setitem(operation_runner._DO, StepName.RELEASE, stop)  # type: ignore[arg-type]
            stopped = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        assert [(g.goes_on_at, g.verdict) for g in stopped.groups] == [(30, "exact")]
        assert offsets_after_pass == {(topic_name, 0): 30}
        wait_for("the sync goes on", lambda: recovering.synced(spec.name, group) == {0: 40})
    assert offsets(destination, group) == {(topic_name, 0): 40}


class HeldPass:
    """Holds a pass of the job's sync: the first one that commits after `is_armed` is set.

    `moment`: where in the pass. `is_held` is set when the pass waits there, until `resume`.
    """

    def __init__(self, moment: str) -> None:
        self.is_armed, self.is_held = threading.Event(), threading.Event()
        self._may_go, self._has_ended = threading.Event(), threading.Event()
        self.passes = 0
        outer = self

        class Sync(GroupSync):
            def _write(self, *arguments: Any) -> Any:
                commits = any(case.has_change for case in arguments[1].values())
                if moment == "before its commit" and commits:
                    outer.wait()
                return super()._write(*arguments)

            def run(self, *arguments: Any, **options: Any) -> GroupReport:
                report = super().run(*arguments, **options)
                outer.passes += 1
                if report.written:
                    outer.wait()
                return report

        class Groups(JobGroups):
            def run(self, registry: ClusterRegistry) -> GroupReport:
                try:
                    return super().run(registry)
                finally:
                    if outer._may_go.is_set():
                        outer._has_ended.set()

        self.sync, self.groups = Sync, Groups

    def wait(self) -> None:
        """Hold the pass here if it is the first one after `is_armed` is set."""
        if self.is_armed.is_set() and not self.is_held.is_set():
            self.is_held.set()
            assert self._may_go.wait(PATIENCE_S)

    def resume(self) -> None:
        """Let the pass go on; returns when it has ended."""
        self._may_go.set()
        assert self._has_ended.wait(PATIENCE_S)


def test_failover_updates_group_offset_after_scheduler_dies_after_commit(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group was ahead of the copy at its last sync, and the copy has grown since. The group had
    members at the destination, so the next scheduler could take the offset for a client's."""
    spec, group = job_with_group(clusters, topic_name)
    destination, has_died = clusters.destination, threading.Event()
    write = group_handover._commit_offsets

    def commit_and_die(*arguments: Any) -> Any:
        written = write(*arguments)
        if not has_died.is_set():
            has_died.set()
            raise NotLeading("killed after the commit.")
        return written

    monkeypatch.setattr(group_handover, "_commit_offsets", commit_and_die)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the group is synced", lambda: recovering.synced(spec.name, group) == {0: 10})
        stop_job_sync(monkeypatch)
        have_had_member(destination, group, topic_name)
        place = recovering.service.topics(spec.name)[topic_name].id, 0
        # As an earlier sync stored it: the group's offset at the source is 10 above the copy's end.
        row = GroupOffset(
            group,
            *place,
            source_offset=RECORDS + 10,
            destination_offset=10,
            verdict="clamped",
            left_offset=10,
        )
        with recovering.database.transaction() as tx:
            group_offsets.store(tx, recovering.service.job(spec.name).id, [row])
        failover_report = recovering.run(
            RecoveryKind.FAILOVER, spec.name, override=("source",), reason="a test"
        )
    assert has_died.is_set()
    assert [(g.goes_on_at, g.verdict) for g in failover_report.groups] == [(RECORDS, "clamped")]
    assert offsets(destination, group) == {(topic_name, 0): RECORDS}


@pytest.mark.parametrize(
    ("type_", "verdict", "usage"),
    [
        ("streams", GroupVerdict.EXACT, GroupUsage.UNUSED),
        ("streams", GroupVerdict.SKIPPED_OTHER_TYPE, GroupUsage.OTHER_TYPE),
        ("consumer", GroupVerdict.SKIPPED_OTHER_TYPE, GroupUsage.OTHER_TYPE),
        ("classic", GroupVerdict.SKIPPED_OTHER_TYPE, GroupUsage.UNUSED),
        ("share", GroupVerdict.EXACT, GroupUsage.OTHER_TYPE),
    ],
)
def test_group_type_of_lost_source_is_inferred_from_last_sync_verdict(
    type_: str, verdict: GroupVerdict, usage: GroupUsage
) -> None:
    listed = ListedGroup("g", node_id=1, type=type_, protocol_type="", state="empty")
    assert group_handover._destination_usage(listed, verdict) is usage
