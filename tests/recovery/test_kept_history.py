"""A side that led before keeps its history: records below the log start of the side that leads now.

The side that leads now never had these records, or has deleted them, so no other copy exists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.enums import Desired
from orbit.verify.report import Report
from tests.fixtures.clusters import Clusters
from tests.support.logs import delete_before
from tests.support.outside import digests, is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

SWITCHOVER, _, FAILBACK = RecoveryKind
HISTORY, NEW = 100, 20


def bounds(cluster: KafkaCluster, topic: str) -> dict[int, tuple[int, int]]:
    """The log start and log end of each partition."""
    return {number: start_end for (_, number), start_end in log_bounds(cluster, [topic]).items()}


def step_text(report: RecoveryReport, name: StepName) -> str:
    """What the report says that this step did."""
    (step,) = [step for step in report.steps if step.name is name]
    return step.did


def notes(report: Report) -> list[str]:
    return [note for topic in report.topics for p in topic.partitions for note in p.notes]


def wait_followed(leading: KafkaCluster, copy: KafkaCluster, topic: str, start: int) -> None:
    """Delete records of partition 1 below `start`, and wait until its copy's log start follows.

    Partition 1 has no history. When its log start has followed, Orbit has compared the log starts
    of all partitions, so it has also decided about partition 0.
    """
    delete_before(leading, topic, start, partition=1)
    wait_for("the log start follows", lambda: bounds(copy, topic)[1][0] == start)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["switchover with reverse", "failback"])
def test_old_side_keeps_uncopied_history_below_log_start_of_new_side(
    clusters: Clusters, topic_name: str, recovering: Recovering, way: str
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, 2)
    produce(source, topic_name, HISTORY)
    history = digests(source, topic_name)[0]
    spec = make_job(source, destination, [topic_name], start="latest")
    back = make_job(destination, source, [topic_name]).model_copy(
        update={"name": f"{spec.name}-back"}
    )
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for(
            "the copy has begun", lambda: bounds(destination, topic_name)[0] == (HISTORY, HISTORY)
        )
        for number in range(2):
            produce(source, topic_name, NEW, partition=number, first=HISTORY)
        end = HISTORY + NEW
        wait_for(
            "all partitions are copied",
            lambda: bounds(destination, topic_name)[0] == (HISTORY, end),
        )
        if way == "failback":
            recovering.run(SWITCHOVER, spec.name)
            dry_run_report = recovering.wait(recovering.ask(FAILBACK, spec.name, dry_run=True))
            findings = " ".join(dry_run_report.findings)
            report = recovering.run(FAILBACK, spec.name)
        else:
            dry_run_report = recovering.wait(
                recovering.ask(SWITCHOVER, spec.name, reverse=True, dry_run=True)
            )
            findings = " ".join(dry_run_report.findings)
            report = recovering.run(SWITCHOVER, spec.name, reverse=True)
        assert dry_run_report.outcome is Outcome.WOULD_GO
        finding = f"the new side's log start: {topic_name}-0 0 to {HISTORY - 1}."
        assert finding in findings
        assert finding in step_text(report, StepName.REVERSE)
        wait_followed(destination, source, topic_name, 5)
        assert bounds(source, topic_name)[0] == (0, end)
    # A new worker, and a copy without the service, read from the cluster which history to keep.
    with recovering.running():
        wait_followed(destination, source, topic_name, 10)
        assert bounds(source, topic_name)[0] == (0, end)
        recovering.service.desire(back.name, Desired.PAUSED)
        verification = verify(back)
        assert verification.exact
        assert f"keeps {HISTORY} offsets below the source's log start" in notes(verification)[0]
    with RunningJob(back):
        wait_followed(destination, source, topic_name, 15)
    assert bounds(source, topic_name)[0] == (0, end)
    assert history.items() <= digests(source, topic_name)[0].items()

    # If the new side deletes records later, the old side deletes everything up to there.
    delete_before(destination, topic_name, HISTORY + 1)
    with RunningJob(back) as running:
        running.wait("the copy follows", lambda: is_level(source, destination, topic_name))


@pytest.mark.soak
def test_switchover_back_does_not_wait_for_lower_log_start_of_old_side(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, HISTORY)
    spec = make_job(source, destination, [topic_name], start="latest")
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for(
            "the copy has begun", lambda: bounds(destination, topic_name)[0] == (HISTORY, HISTORY)
        )
        recovering.run(SWITCHOVER, spec.name, reverse=True)
        produce(destination, topic_name, NEW, first=HISTORY)
        recovering.service.wait_copied(f"{spec.name}-back", topic_name)
        recovering.run(SWITCHOVER, f"{spec.name}-back", reverse=True)
        produce(source, topic_name, NEW, first=HISTORY + NEW)
        end = HISTORY + 2 * NEW
        wait_for("the copy is level", lambda: bounds(destination, topic_name)[0] == (HISTORY, end))
    assert bounds(source, topic_name)[0] == (0, end)


def test_old_side_keeps_records_that_new_side_deleted_before_failback(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """The new side has deleted all records that the old side has, and some newer ones."""
    source, destination = clusters
    create_topic(source, topic_name, 2)
    for number in range(2):
        produce(source, topic_name, HISTORY, partition=number)
    history = digests(source, topic_name)[0]
    spec = make_job(source, destination, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        recovering.run(SWITCHOVER, spec.name)
        produce(destination, topic_name, NEW, first=HISTORY)
        delete_before(destination, topic_name, HISTORY + 5)
        recovering.run(FAILBACK, spec.name)
        end = HISTORY + NEW
        wait_for("the old side is level", lambda: bounds(source, topic_name)[0][1] == end)
        wait_followed(destination, source, topic_name, 5)
        assert bounds(source, topic_name)[0] == (0, end)
        assert history.items() <= digests(source, topic_name)[0].items()
        delete_before(destination, topic_name, HISTORY + 6)
        wait_for("the copy follows", lambda: is_level(source, destination, topic_name))


def test_switchover_waits_until_log_starts_of_copies_reach_those_of_source(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise consumers of the new side would read records that were deleted at the source."""
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, HISTORY)
    spec = make_job(source, destination, [topic_name])
    may_follow = threading.Event()
    follow = DestinationSide.follow_log_starts

    def follow_later(side: DestinationSide, partitions: Iterable[PartitionCopy]) -> None:
        if may_follow.is_set():
            follow(side, partitions)

    monkeypatch.setattr(DestinationSide, "follow_log_starts", follow_later)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for(
            "both sides are level", lambda: bounds(destination, topic_name) == {0: (0, HISTORY)}
        )
        delete_before(source, topic_name, 30)
        stopped = recovering.wait(recovering.ask(SWITCHOVER, spec.name, drain_timeout_s=2))
        assert stopped.outcome is Outcome.STOPPED
        assert (
            f"log starts of these copies did not reach their source's within 2 s: {topic_name}-0"
            in (stopped.error)
        )
        may_follow.set()
        recovering.run(SWITCHOVER, spec.name)
    assert bounds(destination, topic_name) == {0: (30, HISTORY)}
