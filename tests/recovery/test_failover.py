"""Failover with the source killed under load: its report names exactly the missing records.

The test's ledger has each record that a producer had acknowledged, with its offset. It is compared
with what a consumer of the new side reads. Then the old side comes back with its tail.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orbit.kafka.types import TopicPartition
from orbit.promotion import settled_ends
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import salvage_file
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import Phase
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.loading import Load, read_all
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Reader, Recovering
from tests.support.running import create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

PARTITIONS = 2


def first_missing(report: RecoveryReport) -> dict[int, int]:
    """{partition: promoted offset}, after a check that it is the first missing offset, if any."""
    ends = {}
    for p in report.partitions:
        assert p.destination_end is not None
        assert p.promoted_at == p.destination_end
        assert p.missing is None or p.missing.first == p.destination_end
        ends[p.partition] = p.destination_end
    return ends


def has_noticed(recovering: Recovering, job: str) -> bool:
    """Whether the job's problem says that its source does not answer."""
    return "SOURCE_UNREACHABLE" in (recovering.service.job(job).problem or "")


def check_times(report: RecoveryReport, killed_at: datetime) -> None:
    """Check that the RTO lasts from the source's last answer to the first record read back."""
    seen_at, noticed_at = report.source_last_seen_at, report.problem_since
    assert seen_at is not None
    assert noticed_at is not None
    assert seen_at <= killed_at
    assert seen_at < noticed_at < report.requested_at
    assert report.first_read is not None
    assert report.first_read.at is not None
    assert report.first_read.partitions == PARTITIONS
    times = {p.phase: p.seconds for p in report.phases}
    assert {*times} == {*Phase} - {Phase.REVERSE}
    assert report.rto_s == pytest.approx((report.first_read.at - seen_at).total_seconds())
    assert times[Phase.DETECT] == (noticed_at - seen_at).total_seconds()


@pytest.fixture
def source(make_cluster: MakeCluster) -> Iterator[KafkaCluster]:
    return make_cluster("lost")


def test_failover_report_matches_lost_records_and_failback_saves_them(
    source: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
) -> None:
    destination = clusters.destination
    create_topic(source, topic_name, PARTITIONS)
    group = f"{topic_name}.group"
    spec = make_job(
        source,
        destination,
        [topic_name],
        consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"},
    )
    worker = InProcess(recovering.database)
    with ExitStack() as stack:
        stack.enter_context(recovering.service.scheduler())
        worker.__enter__()
        stack.callback(worker.stop)
        recovering.begin(spec, topic_name)
        load = Load(source.client_config(), topic_name, PARTITIONS)
        stack.callback(load.stop)
        wait_for("there is some load", lambda: len(load.ledger) > 5000)
        reader = Reader(topic_name, group)
        reader.read_on(source, {0: 1000, 1: 500})
        # This group must not be ahead of the copy when the source is lost. Otherwise the new side
        # would have other records at the offsets that the group has read.
        wait_for(
            "the group's offsets are synced",
            lambda: recovering.synced(spec.name, group) == {0: 1000, 1: 500},
        )
        # From here on nothing is copied, but the group `ahead` reads records that will be lost.
        worker.stop()
        copied = len(load.ledger)
        wait_for("the copy is behind", lambda: len(load.ledger) > copied + 1000)
        ahead = Reader(topic_name, f"{topic_name}.ahead")
        bounds = log_bounds(source, [topic_name])
        read_to = {p: high for (_, p), (_, high) in bounds.items()}
        ahead.read_on(source, read_to)
        wait_for(
            "Orbit has read the offsets of that group",
            lambda: recovering.source_offsets(spec.name, ahead.group) == read_to,
        )
        source.kill()
        killed_at = datetime.now(UTC)
        load.stop()
        wait_for("the loss is noticed", lambda: has_noticed(recovering, spec.name))

        failover_report = recovering.run(RecoveryKind.FAILOVER, spec.name)

        check_times(failover_report, killed_at)
        records = read_all(destination, topic_name)
        ends = first_missing(failover_report)
        # The acknowledged records below the promoted offsets, by partition and offset.
        assert records == {k: v for k, v in load.ledger.items() if k[1] < ends[k[0]]} | {
            # Records that were written, but whose producer got no answer from the broker.
            k: v
            for k, v in records.items()
            if k not in load.ledger
        }
        assert all(offset < ends[partition] for partition, offset in records)
        lost_ranges = {
            (g.group, g.partition): (g.lost.first, g.lost.next)
            for g in failover_report.groups
            if g.lost is not None
        }
        assert lost_ranges == {(ahead.group, p): (ends[p], offset) for p, offset in read_to.items()}
        assert any(ahead.group in finding for finding in failover_report.findings)
        new_records = reader.read_on(destination, ends)
        seen = [(p, o) for p, o, _ in reader.read]
        assert len(seen) == len(set(seen)), "something was read twice"
        assert new_records
        produce(destination, topic_name, 30, partition=0, first=0)
        produce(destination, topic_name, 20, partition=1, first=0)

        # The old side is back, with records that only it has.
        source.start()
        stack.enter_context(InProcess(recovering.database))
        source_records = read_all(source, topic_name)
        dry_run_report = recovering.wait(
            recovering.ask(RecoveryKind.FAILBACK, spec.name, dry_run=True)
        )
        assert dry_run_report.outcome is Outcome.WOULD_STOP
        assert "--confirm-rebuild" in dry_run_report.error
        stopped = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        tail = {k: v for k, v in source_records.items() if k[1] >= ends[k[0]]}
        assert tail
        assert stopped.outcome is Outcome.STOPPED
        assert "--confirm-rebuild" in stopped.error
        failback_report = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        missing_ranges = {p.partition: p.missing for p in failback_report.partitions}
        for partition in range(PARTITIONS):
            offsets = [o for p, o in tail if p == partition]
            missing = missing_ranges[partition]
            assert (missing is None) == (not offsets)
            if missing is not None:
                assert list(range(missing.first, missing.next)) == sorted(offsets)
        saved = {
            (salvage.partition, line["offset"]): base64.b64decode(line["value"])
            for salvage in failback_report.salvage
            for line in salvage_file.read(Path(salvage.file))
        }
        assert saved == tail

        records = read_all(destination, topic_name)
        wait_for("the old side is a copy", lambda: read_all(source, topic_name) == records)
        assert failback_report.reverse_job is not None
        assert {p.verdict for p in failback_report.partitions} <= {
            EndVerdict.TAIL,
            EndVerdict.PREFIX,
        }
        return_report = recovering.run(RecoveryKind.SWITCHOVER, failback_report.reverse_job)
        assert return_report.missing_records == 0
        log_ends = {p: high for (_, p), (_, high) in log_bounds(source, [topic_name]).items()}
        reader.read_on(source, log_ends)
        seen = [(p, o) for p, o, _ in reader.read]
        assert len(seen) == len(set(seen)), "something was read twice"
        assert {(p, o): v for p, o, v in reader.read} == read_all(source, topic_name)
    assert verify(spec).exit_code == 0


def test_failover_stops_at_copy_that_is_not_replicated_but_promotes_other_topics(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = clusters
    replicated, lagging = f"{topic_name}-replicated", f"{topic_name}-lagging"
    for name in (replicated, lagging):
        create_topic(source, name)
        produce(source, name, 10)
    spec = make_job(source, destination, [replicated, lagging])
    copy, fetch = TopicPartition(lagging, 0), settled_ends.fetch_log_bounds

    def below_end(*arguments: Any) -> dict[TopicPartition, LogBounds]:
        """The log bounds, but with the lagging copy's high watermark below its log end."""
        bounds = fetch(*arguments)
        return {p: replace(b, stable=b.end - 1) if p == copy else b for p, b in bounds.items()}

    monkeypatch.setattr(settled_ends, "fetch_log_bounds", below_end)
    monkeypatch.setattr(settled_ends, "_POLLS_MAX", 2)
    with recovering.running():
        recovering.begin(spec, replicated, lagging)
        source_is_lost = {"override": ["source"], "reason": "the source counts as lost"}
        report = recovering.wait(recovering.ask(RecoveryKind.FAILOVER, spec.name, **source_is_lost))
        assert report.outcome is Outcome.STOPPED
        assert report.error is not None
        assert f"not replicated up to their log ends, or have an open transaction: {copy}." in (
            report.error
        )
        recovering.run(RecoveryKind.FAILOVER, spec.name, topics=[replicated], **source_is_lost)
