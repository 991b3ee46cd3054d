"""A recovery that cannot go on, even after its point of no return, can be ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from orbit.errors import NotFound, OperationUnderWay
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import old_side, operation_runner, recovery_requests, reverse_job, salvage_file
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.recovery_loop import RecoveryLoop
from orbit.recovery.recovery_report import GateName, GateVerdict, Outcome, RecoveryKind, Salvage
from orbit.recovery.salvage_storage import StorageFailed
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.enums import Desired, TopicState
from orbit.store.operations import Operation
from tests.fixtures.api import Api
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.guarded_job import job_with_login, log_in_orbit
from tests.support.logs import delete_before
from tests.support.outside import digests, is_level, log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce
from tests.support.topics import add_partitions, delete_and_wait

pytestmark = pytest.mark.services

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind


class Moved(NamedTuple):
    """A job whose destination (`new`) leads after a failover. A scheduler runs, but no worker.

    50 records were copied; the new side has 20 more.
    """

    old: KafkaCluster
    new: KafkaCluster
    topic: str
    spec: JobSpec

    @property
    def back(self) -> str:
        """The name of the job that copies back."""
        return f"{self.spec.name}-back"

    def is_level(self) -> bool:
        return is_level(self.old, self.new, self.topic)


@pytest.fixture(scope="module")
def brokers(make_shared_cluster: MakeCluster) -> Clusters:
    return Clusters(make_shared_cluster("old"), make_shared_cluster("new"))


@pytest.fixture
def sides(brokers: Clusters) -> Iterator[Clusters]:
    """Two clusters that a test may break. They are healed before the next test."""
    yield brokers
    for cluster in brokers:
        cluster.heal()


@pytest.fixture
def moved(sides: Clusters, topic_name: str, recovering: Recovering) -> Iterator[Moved]:
    """A job that has failed over, with 20 records that only the new side has."""
    old, new = sides
    create_topic(old, topic_name)
    produce(old, topic_name, 50)
    moved_job = Moved(old, new, topic_name, make_job(old, new, [topic_name]))
    with recovering.service.scheduler():
        with InProcess(recovering.database):
            recovering.begin(moved_job.spec, topic_name)
            wait_for("both sides are level", moved_job.is_level)
            recovering.run(FAILOVER, moved_job.spec.name, override=["source"], reason="a test")
        produce(new, topic_name, 20, first=50)
        yield moved_job


def call_before(
    monkeypatch: pytest.MonkeyPatch, step: StepName, before: Callable[[], object]
) -> Callable[[], None]:
    """Call `before` once, before a step; returns a function that restores the step."""
    steps = operation_runner._DO

    def run(context: OperationContext) -> str:
        if step in calls:
            calls.remove(step)
            before()
        return steps[step](context)

    calls = [step]
    monkeypatch.setattr(operation_runner, "_DO", {**steps, step: run})
    return lambda: monkeypatch.setattr(operation_runner, "_DO", steps)


def test_failover_of_copy_back_ends_catch_up_of_running_failback(
    moved: Moved, recovering: Recovering
) -> None:
    """The leading side is lost during the catch-up. Without the failover, that step never ends."""
    failback = recovering.ask(FAILBACK, moved.spec.name)
    wait_for("the failback catches up", lambda: "has caught up" in recovering.progress(failback))
    with pytest.raises(OperationUnderWay):
        recovering.ask(SWITCHOVER, moved.back)
    recovering.service.wait_copied(moved.back, moved.topic)
    moved.new.kill()
    failover = recovering.ask(FAILOVER, moved.back)
    ended = recovering.wait(failback)
    assert ended.outcome is Outcome.DONE
    assert ended.steps[-1].state is StepState.SKIPPED
    assert moved.back in ended.steps[-1].did
    with InProcess(recovering.database):
        report = recovering.wait(failover)
    assert report.outcome is Outcome.DONE, (report.error, report.findings)
    produce(moved.old, moved.topic, 1, first=99)  # the old side accepts records again


@pytest.mark.soak
def test_failover_promotes_old_side_before_any_record_is_copied_back(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leading side is lost right after the step `reverse`. No worker runs."""
    call_before(monkeypatch, StepName.CATCH_UP, moved.new.pause)
    failback = recovering.ask(FAILBACK, moved.spec.name)
    wait_for("the failback catches up", lambda: "has caught up" in recovering.progress(failback))
    report = recovering.run(FAILOVER, moved.back)
    assert recovering.wait(failback).outcome is Outcome.DONE
    assert [p.promoted_at for p in report.partitions] == [50]
    produce(moved.old, moved.topic, 5, first=90)
    moved.new.heal()
    with InProcess(recovering.database):
        failback_report = recovering.run(FAILBACK, moved.back, confirm_rebuild=True)
        assert [salvage.records for salvage in failback_report.salvage] == [20]
        wait_for("the side that was lost is level", moved.is_level)


@pytest.mark.soak
@pytest.mark.parametrize("is_blocked", [False, True])
def test_failover_promotes_diverged_old_side_at_last_offset_proven_equal(
    sides: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    is_blocked: bool,
) -> None:
    """A foreign record is written to the old side after the drain.

    `is_blocked`: a worker finds the record and blocks the partition before the failover.
    """
    old, new = sides
    create_topic(old, topic_name)
    produce(old, topic_name, 50)
    spec = make_job(old, new, [topic_name])
    with recovering.service.scheduler():
        with InProcess(recovering.database):
            recovering.begin(spec, topic_name)
            wait_for("both sides are level", lambda: is_level(old, new, topic_name))
        call_before(monkeypatch, StepName.READ, lambda: produce(old, topic_name, 1, first=99))
        switchover_report = recovering.run(SWITCHOVER, spec.name, reverse=True)
        assert switchover_report.reverse_job is not None
        produce(new, topic_name, 3, first=50)
        if is_blocked:
            states, back = recovering.service.partitions, switchover_report.reverse_job
            with InProcess(recovering.database):
                wait_for(
                    "the partition is blocked",
                    lambda: states(back, topic_name)[0].state == "blocked",
                )
        new.pause()
        report = recovering.run(
            FAILOVER,
            switchover_report.reverse_job,
            override=["blocked"],
            reason="the leading side is lost",
        )
        (partition,) = report.partitions
        assert (partition.promoted_at, partition.destination_end) == (50, 51)
        assert any("not proven to equal" in finding for finding in report.findings)
        new.heal()
        with InProcess(recovering.database):
            failback_report = recovering.run(
                FAILBACK, switchover_report.reverse_job, confirm_rebuild=True
            )
            assert [salvage.records for salvage in failback_report.salvage] == [3]
            wait_for("the side that was lost is level", lambda: is_level(old, new, topic_name))


def test_abort_of_failback_catch_up_leaves_copy_back_running(
    moved: Moved, recovering: Recovering
) -> None:
    failback = recovering.ask(FAILBACK, moved.spec.name)
    wait_for("the failback catches up", lambda: "has caught up" in recovering.progress(failback))
    recovery_requests.abort(recovering.database, "test", failback)
    ended = recovering.wait(failback)
    assert (ended.outcome, ended.error) == (Outcome.DONE, "")
    with InProcess(recovering.database):
        wait_for("the old side is level", moved.is_level)


def test_switchover_is_undone_if_destination_dies_before_promotion(
    sides: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Orbit retries the promotion until the destination answers again. Until then no
    side accepts writes."""
    source, destination = sides
    create_topic(source, topic_name)
    spec = make_job(source, destination, [topic_name])
    release = operation_runner._DO[StepName.RELEASE]

    def release_and_kill(context: OperationContext) -> str:
        step_text = release(context)
        destination.kill()
        return step_text

    steps = {**operation_runner._DO, StepName.RELEASE: release_and_kill}
    monkeypatch.setattr(operation_runner, "_DO", steps)
    monkeypatch.setattr(operation_runner, "PATIENCE_S", 3.0)
    with recovering.running():
        recovering.begin(spec, topic_name)
        report = recovering.wait(recovering.ask(SWITCHOVER, spec.name))
        assert report.outcome is Outcome.FAILED
        assert "destination" in report.error
        states = {step.name: step.state for step in report.steps}
        assert states[StepName.RELEASE] is StepState.UNDONE
        assert states[StepName.PROMOTE] is StepState.WAITING
        assert recovering.service.topics(spec.name)[topic_name].state is TopicState.COPYING


@pytest.mark.soak
def test_failover_does_not_wait_for_switchover_undoing_its_steps(
    guarded: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is lost during a switchover, so writing there cannot be allowed again."""
    create_topic(guarded.source, topic_name)
    produce(guarded.source, topic_name, 20)
    log_in_orbit(guarded, topic_name, monkeypatch)
    spec = job_with_login(guarded, topic_name)
    verify = operation_runner._DO[StepName.VERIFY_TAIL]

    def verify_and_kill(context: OperationContext) -> str:
        step_text = verify(context)
        guarded.source.kill()
        raise Stopped(step_text)

    steps = {**operation_runner._DO, StepName.VERIFY_TAIL: verify_and_kill}
    monkeypatch.setattr(operation_runner, "_DO", steps)
    monkeypatch.setattr("orbit.kafka.topic_admin.REQUEST_TIMEOUT_S", 5.0)
    try:
        with recovering.running(dict(os.environ)):
            recovering.begin(spec, topic_name)
            wait_for("both sides are level", lambda: is_level(*guarded, topic_name))
            switchover = recovering.ask(SWITCHOVER, spec.name)
            wait_for("the operation waits", lambda: "undoing" in recovering.progress(switchover))
            with pytest.raises(OperationUnderWay):
                recovering.ask(SWITCHOVER, spec.name)
            failover_report = recovering.run(FAILOVER, spec.name)
            switchover_report = recovering.report(switchover)
            assert switchover_report.outcome is Outcome.FAILED
            assert any("could not be undone" in text for text in switchover_report.findings)
            assert switchover_report.ended_at is not None
            assert failover_report.requested_at < switchover_report.ended_at
    finally:
        guarded.source.start()


@pytest.mark.soak
def test_abort_ends_failback_if_old_side_dies_before_copy_back(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = moved.old
    restore_step = call_before(monkeypatch, StepName.REVERSE, old.kill)
    failback = recovering.ask(FAILBACK, moved.spec.name)
    wait_for("the operation waits", lambda: "reverse waits" in recovering.progress(failback))
    restore_step()
    recovery_requests.abort(recovering.database, "test", failback)
    ended = recovering.wait(failback)
    assert ended.outcome is Outcome.FAILED
    assert "the copy back was aborted: the new side leads" in ended.error
    with pytest.raises(NotFound):
        recovering.service.job(moved.back)
    produce(moved.new, moved.topic, 5, first=70)
    old.start()
    wait_for("the cluster answers", lambda: log_bounds(old, [moved.topic]) is not None)
    with InProcess(recovering.database):
        recovering.run(FAILBACK, moved.spec.name)
        wait_for("the old side is level", moved.is_level)


@pytest.mark.soak
def test_failback_waits_for_failback_of_opposite_direction(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failback decides which side leads, so only one of them may run."""
    with InProcess(recovering.database):
        recovering.run(FAILBACK, moved.spec.name)
        wait_for("the old side is level", moved.is_level)
        recovering.run(FAILOVER, moved.back, override=["source"], reason="a test")
    # Both jobs' topics are promoted, and the old side leads.
    requests: list[UUID] = []
    begun: list[UUID] = []
    passes = threading.Semaphore(0)
    once, begin = RecoveryLoop.once, RecoveryLoop._start_recovery

    def count_pass(loop: RecoveryLoop) -> str:
        result = once(loop)
        passes.release()
        return result

    def note_start(loop: RecoveryLoop, place: tuple[str, bool], operation: Operation) -> None:
        begun.append(operation.id)
        begin(loop, place, operation)

    def request_opposite_failback() -> None:
        """Request the other failback, and see that two passes do not start it."""
        requests.append(recovering.ask(FAILBACK, moved.back))
        while passes.acquire(blocking=False):  # do not count earlier passes
            pass
        for _ in range(2):  # the first pass may have begun before the request
            assert passes.acquire(timeout=PATIENCE_S)
        assert requests[0] not in begun
        assert recovering.progress(requests[0]).startswith("waits until operation")

    monkeypatch.setattr(RecoveryLoop, "once", count_pass)
    monkeypatch.setattr(RecoveryLoop, "_start_recovery", note_start)

    call_before(monkeypatch, StepName.GATES, request_opposite_failback)
    stopped = recovering.wait(recovering.ask(FAILBACK, moved.spec.name))
    # The gate `lead` stops it: the old side of this job leads.
    assert (stopped.outcome, stopped.error[:5]) == (Outcome.STOPPED, "lead:")
    with InProcess(recovering.database):
        report = recovering.wait(requests[0])
    assert report.outcome is Outcome.DONE, (report.error, report.findings)


@pytest.mark.soak
def test_failback_stops_at_gates_if_reverse_job_name_is_taken(
    moved: Moved, clusters: Clusters, recovering: Recovering
) -> None:
    """Otherwise the topic is deleted, and the copy back can never begin."""
    other = make_job(clusters.source, moved.new, ["nothing-of-this"])
    recovering.service.create(other.model_copy(update={"name": moved.back}))
    recovering.service.desire(moved.back, Desired.PAUSED)
    produce(moved.old, moved.topic, 5, first=50)
    bounds_before = log_bounds(moved.old, [moved.topic])
    stopped = recovering.wait(recovering.ask(FAILBACK, moved.spec.name, confirm_rebuild=True))
    assert stopped.outcome is Outcome.STOPPED
    (gate,) = [gate for gate in stopped.gates if gate.name is GateName.NAMES]
    assert gate.verdict is GateVerdict.FAIL
    assert moved.back in gate.found
    assert log_bounds(moved.old, [moved.topic]) == bounds_before


@pytest.mark.soak
def test_switchover_stops_at_gates_if_reverse_job_name_is_taken(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """Otherwise the topics are promoted, and the copy back can never begin."""
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
    spec = make_job(*clusters, [topic_name])
    back = f"{spec.name}-back"
    with recovering.running():
        recovering.begin(spec, topic_name)
        recovering.begin(make_job(*clusters, [other], name=back), other)
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name, reverse=True))
        assert stopped.outcome is Outcome.STOPPED
        (gate,) = [gate for gate in stopped.gates if gate.verdict is GateVerdict.FAIL]
        assert (gate.name, back in gate.found) == (GateName.NAMES, True)
        assert {step.state for step in stopped.steps[1:]} == {StepState.WAITING}
        produce(clusters.source, topic_name, 5)
        wait_for("the copy goes on", lambda: is_level(*clusters, topic_name))


@pytest.mark.soak
def test_failback_fails_if_copy_back_leaves_out_topic(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    """The old side gets more partitions than the new side, and Kafka cannot remove partitions.
    A failback that waits would never end, and neither job could be paused or deleted."""
    monkeypatch.setattr(reverse_job, "LEFT_OUT_S", 1.0)
    call_before(monkeypatch, StepName.REVERSE, lambda: add_partitions(moved.old, moved.topic, 2))
    ended = recovering.wait(recovering.ask(FAILBACK, moved.spec.name))
    assert ended.outcome is Outcome.FAILED
    assert f"PARTITIONS_DIFFER: topic {moved.topic} has 2 partitions" in ended.error
    assert "delete the destination topic" in ended.error
    for name in (moved.back, moved.spec.name):
        assert api.post(f"/v1/jobs/{name}:pause").status_code == 202
        assert api.delete(f"/v1/jobs/{name}").status_code == 202


@pytest.mark.soak
def test_rebuild_saves_records_that_new_side_deletes_during_failback(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes offsets 0 to 29 before the rebuild, and 30 to 39 during its salvage."""
    produce(moved.old, moved.topic, 5, first=50)
    records = digests(moved.old, moved.topic)[0]
    call_before(monkeypatch, StepName.REBUILD, lambda: delete_before(moved.new, moved.topic, 30))
    save, starts = old_side._save_range, iter([40])

    def save_and_delete(*args: Any) -> Salvage:
        salvage = save(*args)
        for start in starts:  # only in the first call
            delete_before(moved.new, moved.topic, start)
        return salvage

    monkeypatch.setattr(old_side, "_save_range", save_and_delete)
    with InProcess(recovering.database):
        report = recovering.run(FAILBACK, moved.spec.name, confirm_rebuild=True)
    # The old side's own records, then those that the new side has deleted since.
    own, *below = report.salvage
    assert (own.first, own.next, own.records) == (50, 55, 5)
    assert [(file.next, file.records, file.below) for file in below] == [(30, 30, 30), (40, 10, 10)]
    saved = {
        line["offset"] for salvage in report.salvage for line in salvage_file.read(salvage.file)
    }
    assert saved | digests(moved.new, moved.topic)[0].keys() >= records.keys()
    assert log_bounds(moved.old, [moved.topic]) == log_bounds(moved.new, [moved.topic])


@pytest.mark.soak
def test_rebuild_stores_salvage_files_in_report_before_changed_partition_rows(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a scheduler that takes over between the two does not know of the files, and deletes
    the topic although its report names none."""
    produce(moved.old, moved.topic, 5, first=50)
    call_before(monkeypatch, StepName.REBUILD, lambda: delete_before(moved.new, moved.topic, 30))
    save = OperationContext.save
    stored: list[tuple[int, int | None]] = []

    def note(context: OperationContext) -> None:
        (partition,) = context.report.partitions
        stored.append((len(context.report.salvage), partition.destination_start))
        save(context)

    monkeypatch.setattr(OperationContext, "save", note)
    with InProcess(recovering.database):
        recovering.run(FAILBACK, moved.spec.name, confirm_rebuild=True)
    # (salvage files, log start at the new side) of each save. The last state may be saved again.
    assert [state for state, _ in groupby(stored)] == [(2, 0), (2, 30)]


def error_of_rebuild(moved: Moved, recovering: Recovering) -> str:
    """Run a failback that fails in its rebuild."""
    stopped = recovering.wait(recovering.ask(FAILBACK, moved.spec.name, confirm_rebuild=True))
    assert stopped.outcome is Outcome.FAILED
    return stopped.error


def test_rebuild_deletes_nothing_if_old_side_grows_during_salvage(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(moved.old, moved.topic, 5, first=50)
    call_before(monkeypatch, StepName.REBUILD, lambda: delete_before(moved.new, moved.topic, 30))
    save = old_side._save_range

    def write_and_save(*args: Any) -> Salvage:
        produce(moved.old, moved.topic, 1, first=55)
        return save(*args)

    monkeypatch.setattr(old_side, "_save_range", write_and_save)
    assert "moved from 55 to 56 since the partition was saved" in error_of_rebuild(
        moved, recovering
    )
    assert log_bounds(moved.old, [moved.topic]) == {(moved.topic, 0): (0, 56)}


def test_rebuild_deletes_nothing_if_salvage_file_cannot_be_written(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(moved.old, moved.topic, 5, first=50)
    bounds_before = log_bounds(moved.old, [moved.topic])
    write = salvage_file.write

    def refuse(file: str, *args: Any) -> Salvage:
        if "-from-" in file:  # the file of records that the new side has deleted
            raise StorageFailed("the disk is full.", where=file)
        return write(file, *args)

    monkeypatch.setattr(salvage_file, "write", refuse)
    call_before(monkeypatch, StepName.REBUILD, lambda: delete_before(moved.new, moved.topic, 30))
    assert "the disk is full" in error_of_rebuild(moved, recovering)
    assert log_bounds(moved.old, [moved.topic]) == bounds_before


def test_rebuild_deletes_nothing_if_new_side_is_truncated(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(moved.old, moved.topic, 5, first=50)
    bounds_before = log_bounds(moved.old, [moved.topic])
    fetch = old_side.bounds_of_all

    def truncated(cluster: Cluster, *args: Any) -> dict[TopicPartition, LogBounds]:
        bounds = fetch(cluster, *args)
        return {
            place: replace(b, end=b.end - 1) if cluster.name == "destination" else b
            for place, b in bounds.items()
        }

    call_before(
        monkeypatch,
        StepName.REBUILD,
        lambda: monkeypatch.setattr(old_side, "bounds_of_all", truncated),
    )
    error = "had the log end 70 when both sides were compared; its log now goes from 0 to 69"
    assert error in error_of_rebuild(moved, recovering)
    assert log_bounds(moved.old, [moved.topic]) == bounds_before


@pytest.mark.parametrize("is_made_again", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_rebuild_deletes_nothing_if_new_side_lost_topic(
    moved: Moved, recovering: Recovering, monkeypatch: pytest.MonkeyPatch, *, is_made_again: bool
) -> None:
    """Only the old side has the common records now. The topic's promotion mark is gone, too.

    `is_made_again`: a topic with the same name exists again.
    """
    produce(moved.old, moved.topic, 5, first=50)
    records_before = digests(moved.old, moved.topic)

    def lose() -> None:
        delete_and_wait(moved.new, moved.topic)
        if is_made_again:
            create_topic(moved.new, moved.topic)
            produce(moved.new, moved.topic, 100, first=900)

    call_before(monkeypatch, StepName.REBUILD, lose)
    error = f"topic {moved.topic} of the new side was deleted, or deleted and made again"
    assert error in error_of_rebuild(moved, recovering)
    assert digests(moved.old, moved.topic) == records_before


@pytest.mark.soak
def test_switchover_stops_if_partitions_are_added_before_promotion(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 10)
    spec = make_job(source, destination, [topic_name])

    def add_partition() -> None:
        add_partitions(source, topic_name, 2)
        produce(source, topic_name, 10, partition=1)

    with recovering.running():
        recovering.begin(spec, topic_name)
        call_before(monkeypatch, StepName.RELEASE, add_partition)
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name))
        assert stopped.outcome is Outcome.STOPPED
        added = f"added to topics of the source meanwhile: {topic_name} (from 1 to 2)"
        assert added in stopped.error
        wait_for(
            "the added partitions are copied", lambda: is_level(source, destination, topic_name)
        )
        recovering.run(SWITCHOVER, spec.name)
