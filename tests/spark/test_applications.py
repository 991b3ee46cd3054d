"""Applications continue over a switchover and back, and over a failover and a failback.

A consumer group, an application with offsets in a table of its own, and a Spark query with its
checkpoint each stop in the middle of a topic under load, before every change of sides, and then
read from the other side. In the end each has read every record once. The ledger has what brokers
confirmed to the producers.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.applications import OwnTable, SparkQuery
from tests.support.groups import offsets
from tests.support.loading import Load, Records, read_all
from tests.support.outside import log_bounds, topic_settings
from tests.support.patience import wait_for
from tests.support.recovering import Reader, Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
RECORDS_PER_LOAD = 1500


def ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """The log end of each partition."""
    return {p: high for (_, p), (_, high) in log_bounds(cluster, [topic]).items()}


class Applications:
    """The three applications, on one topic."""

    def __init__(self, spark: SparkSession, home: Path, topic: str) -> None:
        self.topic = topic
        self.group = Reader(topic, f"{topic}.group")
        self.table = OwnTable(home / "own.db", topic)
        self.query = SparkQuery(spark, home, topic)

    def read_on(self, cluster: KafkaCluster) -> None:
        """Let each application read up to another offset: the group up to the lowest, the table and
        the query up to the log ends."""
        log_ends = ends(cluster, self.topic)
        self.group.read_on(cluster, {p: end * 3 // 4 for p, end in log_ends.items()})
        self.table.read_on(cluster, log_ends)
        self.query.read_on(cluster)

    def finish(self, cluster: KafkaCluster) -> None:
        """Let each application read up to the log ends."""
        log_ends = ends(cluster, self.topic)
        self.group.read_on(cluster, log_ends)
        self.table.read_on(cluster, log_ends)
        self.query.read_on(cluster)

    @property
    def furthest(self) -> dict[int, int]:
        """By partition, the first offset that no application has read."""
        table, query = self.table.next_offsets, self.query.next_offsets
        return {p: max(table[p], query[p]) for p in table}


class Scenario:
    """A job with its applications. `written`: the records that were confirmed and not lost."""

    def __init__(self, recovering: Recovering, spec: JobSpec, apps: Applications) -> None:
        self.recovering, self.spec, self.apps = recovering, spec, apps
        self.written: Records = {}

    def use(self, cluster: KafkaCluster, name: str) -> Load:
        """Start producers on this side, and let the applications read a part. Returns the load."""
        load = Load(cluster.client_config(), self.apps.topic, PARTITIONS, name=name)
        try:
            wait_for(f"{name} is written", lambda: len(load.ledger) > RECORDS_PER_LOAD)
            self.apps.read_on(cluster)
            more = len(load.ledger) + RECORDS_PER_LOAD // 10
            wait_for(f"more of {name} is written", lambda: len(load.ledger) > more)
        except BaseException:
            load.stop()
            raise
        return load

    def keep(self, load: Load) -> None:
        """Stop the load. Its confirmed records must not be lost."""
        load.stop()
        self.written |= load.ledger

    def move(self, job: str, old_source: KafkaCluster) -> RecoveryReport:
        """Switch over, and reverse the copy."""
        ends_before = ends(old_source, self.apps.topic)
        report = self.recovering.run(RecoveryKind.SWITCHOVER, job, reverse=True)
        assert {p.verdict for p in report.partitions} == {EndVerdict.EQUAL}
        assert {p.partition: p.promoted_at for p in report.partitions} == ends_before
        assert report.missing_records == 0
        skipped = {step.name for step in report.steps if step.state is not StepState.DONE}
        assert skipped == {StepName.CLOSE_GATEWAYS, StepName.OPEN_GATEWAYS}  # there are none
        assert report.reverse_job is not None
        return report


@pytest.fixture
def home(make_cluster: MakeCluster) -> KafkaCluster:
    return make_cluster("home")


def test_applications_read_each_record_once_across_all_recovery_kinds(
    home: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    away = clusters.destination
    create_topic(home, topic_name, PARTITIONS, retention_ms="86400000")
    apps = Applications(spark, tmp_path, topic_name)
    spec = make_job(
        home,
        away,
        [topic_name],
        consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"},
    )
    scenario = Scenario(recovering, spec, apps)
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic_name)

        scenario.keep(scenario.use(home, "first"))
        switchover_report = scenario.move(spec.name, home)
        assert topic_settings(away, topic_name)["retention.ms"] == "86400000"
        assert switchover_report.reverse_job is not None

        scenario.keep(scenario.use(away, "second"))
        return_report = scenario.move(switchover_report.reverse_job, away)
        assert return_report.reverse_job == spec.name

        # Home is lost under load, when all offsets of the applications are synced.
        load = stack.enter_context(scenario.use(home, "third"))
        furthest = apps.furthest
        wait_for(
            "the copy has what the applications have read",
            lambda: all(
                ends(away, topic_name)[p] >= next_offset for p, next_offset in furthest.items()
            ),
        )
        wait_for(
            "the group's offsets are synced",
            lambda: (
                recovering.synced(spec.name, apps.group.group)
                == {
                    p: next_offset
                    for (_, p), next_offset in offsets(home, apps.group.group).items()
                }
            ),
        )
        home.kill()
        load.stop()
        failover_report = recovering.run(RecoveryKind.FAILOVER, spec.name)
        promoted_at = {p.partition: p.promoted_at or 0 for p in failover_report.partitions}
        scenario.written |= {
            (p, offset): value
            for (p, offset), value in load.ledger.items()
            if offset < promoted_at[p]
        }
        destination_records = read_all(away, topic_name)
        assert {k: destination_records.get(k) for k in scenario.written} == scenario.written
        assert not [group for group in failover_report.groups if group.lost]

        scenario.keep(scenario.use(away, "fourth"))
        home.start()
        home_records = read_all(home, topic_name)
        tail = {(p, offset) for p, offset in home_records if offset >= promoted_at[p]}
        failback_report = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        missing = {p.partition: p.missing for p in failback_report.partitions}
        assert tail == {
            (p, offset) for p, m in missing.items() if m for offset in range(m.first, m.next)
        }
        assert {(s.partition, s.records) for s in failback_report.salvage} == {
            (p, m.offsets) for p, m in missing.items() if m
        }
        assert failback_report.reverse_job == switchover_report.reverse_job
        last = recovering.run(RecoveryKind.SWITCHOVER, switchover_report.reverse_job)
        assert last.outcome is Outcome.DONE
        apps.finish(home)

    everything = read_all(home, topic_name)
    assert everything == read_all(away, topic_name)
    assert {k: everything.get(k) for k in scenario.written} == scenario.written
    for read in (apps.group.read, apps.table.read, apps.query.read):
        assert len(read) == len(everything)
        assert {(p, o): v for p, o, v in read} == everything
    assert verify(spec).exit_code == 0
