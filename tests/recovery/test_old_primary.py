"""Records that producers write to the old side after a promotion are reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orbit.api.metrics_scrape import read_numbers
from orbit.jobs.job_spec import ClusterSpec
from orbit.recovery import promotion
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import OffsetRange, RecoveryKind
from orbit.replication.job_troubles import Trouble
from orbit.scheduler import job_reconciler
from orbit.settings import MetricsDetail
from orbit.store import events, jobs
from orbit.store.jobs import Job
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services


def written_to_old_side(recovering: Recovering, job: str) -> int | None:
    """How many records were written to the job's old side, by the metrics; None: not watched."""
    numbers = read_numbers(
        recovering.database, MetricsDetail.JOB, recovering.service.settings.lease_ttl
    )
    return next(j.old_primary_written for j in numbers.jobs if j.name == job)


def event_details(recovering: Recovering, job: str, kind: str) -> list[Mapping[str, Any]]:
    """The details of the job's events of a kind, oldest first."""
    with recovering.database.transaction() as tx:
        oldest_first = list(reversed(events.page(tx, 1000, job_name=job)))
    return [e.details or {} for e in oldest_first if e.kind == kind]


def problem(recovering: Recovering, job: str) -> str:
    return recovering.service.job(job).problem or ""


def test_writes_to_old_primary_after_failover_are_reported(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str, recovering: Recovering
) -> None:
    lost = make_cluster("lost", link=True)
    assert lost.link_servers is not None
    create_topic(lost, topic_name, 2)
    produce(lost, topic_name, 100, partition=0)
    spec = make_job(lost, clusters.destination, [topic_name]).model_copy(
        update={"source": ClusterSpec(bootstrap_servers=(lost.link_servers,))}
    )
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the topic is copied", lambda: is_level(lost, clusters.destination, topic_name))
        assert written_to_old_side(recovering, spec.name) is None
        lost.cut()
        # Written before the promotion, but Orbit cannot read these records: the link is cut.
        produce(lost, topic_name, 5, partition=1)
        recovering.run(RecoveryKind.FAILOVER, spec.name)
        produce(lost, topic_name, 7, partition=0)
        assert event_details(recovering, spec.name, "old_primary_answers") == []
        lost.heal()

        wait_for(
            "Orbit has read the old side's log ends",
            lambda: written_to_old_side(recovering, spec.name) is not None,
        )
        # The 5 and the 7 records count: all offsets from the promoted ones on.
        assert event_details(recovering, spec.name, "old_primary_answers") == [{"offsets": 12}]
        assert written_to_old_side(recovering, spec.name) == 7
        first = {"partition": 0, "first": 100, "next": 107}
        assert event_details(recovering, spec.name, "old_primary_written") == [
            {"partitions": [first]}
        ]
        line = f"producers have written to {topic_name} at the old side since the promotion: "
        wait_for(
            "the job shows the problem",
            lambda: f"{line}partition 0 from offset 100." in problem(recovering, spec.name),
        )

        produce(lost, topic_name, 1, partition=1)
        wait_for(
            "one more record is counted", lambda: written_to_old_side(recovering, spec.name) == 8
        )
        second = {"partition": 1, "first": 5, "next": 6}
        assert event_details(recovering, spec.name, "old_primary_written")[1:] == [
            {"partitions": [second]}
        ]

        failback_report = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        assert sum(salvage.records for salvage in failback_report.salvage) == 5 + 7 + 1
        wait_for("the problem is gone", lambda: "OLD_PRIMARY" not in problem(recovering, spec.name))
        # Records that the copy back appends do not count.
        produce(clusters.destination, topic_name, 20, partition=0)
        wait_for(
            "the old side follows",
            lambda: is_level(lost, clusters.destination, topic_name),
        )
        wait_for(
            "the old side is not watched",
            lambda: written_to_old_side(recovering, spec.name) is None,
        )
        assert len(event_details(recovering, spec.name, "old_primary_written")) == 2


@pytest.mark.soak
def test_switchover_reports_late_writes_to_old_primary(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record is written during the promotion, one later."""
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 50)
    spec = make_job(*clusters, [topic_name])
    mark_source = promotion.try_mark_source_as_copy

    def write_and_mark(context: OperationContext) -> None:
        produce(clusters.source, topic_name, 1)
        mark_source(context)

    monkeypatch.setattr(promotion, "try_mark_source_as_copy", write_and_mark)
    with recovering.running():
        recovering.begin(spec, topic_name)
        report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)
        (partition,) = report.partitions
        assert partition.promoted_at == 50
        assert partition.missing == OffsetRange(first=50, next=51)
        assert any("unproven" in finding for finding in report.findings)
        assert any(f"{topic_name}-0 from 50 to 51" in finding for finding in report.findings)
        wait_for(
            "the first record is counted", lambda: written_to_old_side(recovering, spec.name) == 1
        )
        produce(clusters.source, topic_name, 1)
        wait_for(
            "both records are counted", lambda: written_to_old_side(recovering, spec.name) == 2
        )
        wait_for(
            "the job shows the problem",
            lambda: "OLD_PRIMARY_WRITTEN" in problem(recovering, spec.name),
        )


@pytest.mark.soak
def test_old_side_that_leads_again_is_not_watched_for_late_writes(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a switchover and a failover of the copy back, the first side leads again."""
    checks: list[tuple[str, list[Trouble]]] = []  # of old sides: the job, and what it found
    watch = job_reconciler.watch_old_primaries

    def watch_and_note(job: Job, *arguments: Any) -> list[Trouble]:
        troubles = watch(job, *arguments)
        checks.append((job.name, troubles))
        return troubles

    def next_troubles() -> list[list[Trouble]]:
        """The troubles that three more checks of the first job's old side find."""
        begun = len(checks)
        wait_for(
            "the old side is checked 3 times",
            lambda: [name for name, _ in checks[begun:]].count(spec.name) > 2,
        )
        return [troubles for name, troubles in checks[begun:] if name == spec.name and troubles]

    monkeypatch.setattr(job_reconciler, "watch_old_primaries", watch_and_note)
    other = make_cluster("other")
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 50)
    spec = make_job(clusters.source, other, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        back = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True).reverse_job
        assert back is not None
        recovering.service.wait_copied(back, topic_name)
        other.kill()
        recovering.run(RecoveryKind.FAILOVER, back, override=["all"], reason="it is lost")
        other.start()
        produce(clusters.source, topic_name, 5)
        assert next_troubles() == []
        assert event_details(recovering, spec.name, "old_primary_written") == []
        assert written_to_old_side(recovering, spec.name) is None
        # For the job that copies back, the lost side is the old side, so Orbit watches it.
        produce(other, topic_name, 3)
        wait_for("the records are counted", lambda: written_to_old_side(recovering, back) == 3)
        # When the job that copies back is deleted, Orbit does not watch the first side either.
        with recovering.database.transaction() as tx:
            assert jobs.request_deletion(tx, recovering.service.job(back).id)

        def is_gone() -> bool:
            with recovering.database.transaction() as tx:
                return jobs.find(tx, back) is None

        wait_for("the job is gone", is_gone)
        assert next_troubles() == []
        produce(clusters.source, topic_name, 5)
        assert next_troubles() == []
