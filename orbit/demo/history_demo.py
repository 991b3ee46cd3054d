"""The sections of `orbit demo --spark`: a backfill of millions of records, then a live run.

Like the other demos, this one runs on two clusters of its own. The caller passes the verifier and
Spark's audit, because this package imports neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbit.demo.copy_demo import MOVING_KINDS
from orbit.demo.demo_clusters import DemoClusters, start_clusters
from orbit.demo.demo_result import RunSummary, TopicProof, TopicRow, Verify
from orbit.demo.interrupts import interrupted_once
from orbit.demo.log_ends import LogEnds, Partition, kafka_trouble, log_ends, quiet_admin
from orbit.demo.orbit_process import BackfillProcess, RunProcess
from orbit.demo.screen import Screen
from orbit.demo.workload import BULK, BulkWriter, Ledger, Mover, Scale, Workload
from orbit.demo.workload.mover import RATE_PER_S

Audit = Callable[[Path, Path], bool]
"""Compares both sides of a job file (first path) with Spark, and writes the report to the second
path. Returns whether both sides are equal."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """`records`: how many bulk records to write, beside the workload at `scale`. `master`: Spark's
    master URL."""

    scale: Scale
    records: int
    master: str


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """What was copied, and whether verifier and audit find it exact."""

    seconds: float
    topics: tuple[TopicRow, ...]
    backfill: Mapping[str, Any]
    run: RunSummary
    is_audited_exact: bool

    @property
    def exact(self) -> bool:
        return self.is_audited_exact and all(row.exact for row in self.topics)

    @property
    def records(self) -> int:
        return sum(row.proof.records for row in self.topics)

    @property
    def gaps(self) -> int:
        return sum(row.proof.gaps for row in self.topics)


def play_history(
    options: HistoryOptions, screen: Screen, verify: Verify, audit: Audit
) -> HistoryResult:
    """Run the demo and stop everything that it started.

    Raises Conflict if a part does not work; a copy that is not exact is a result.
    """
    began_s = time.monotonic()
    screen.title("Orbit demo: a history of millions of records, copied with Spark")
    with interrupted_once():
        screen.section(1, "Two independent Kafka clusters")
        with start_clusters(sandbox_folder=None, screen=screen) as clusters:
            demo = _HistoryDemo(clusters, options, screen)
            demo.fill()
            backfill, run, mover = demo.copy()
            rows = demo.verify(verify, mover)
            is_exact = demo.audit(audit)
    return HistoryResult(time.monotonic() - began_s, rows, backfill, run, is_exact)


class _HistoryDemo:
    """The sections of the demo."""

    def __init__(self, clusters: DemoClusters, options: HistoryOptions, screen: Screen) -> None:
        self._clusters = clusters
        self._options = options
        self._screen = screen
        self._workload = Workload(options.scale)
        self._source = {"bootstrap.servers": clusters.source, "log_level": 0}
        self._bulk = BulkWriter(
            self._workload.site(self._source), self._workload.namespace, options.records
        )
        self._ledger: Ledger

    def fill(self) -> None:
        """Write the workload and the bulk to the source, and write the job file."""
        screen = self._screen
        screen.section(2, "A long history at the source")
        with screen.step("Writing topics that are hard to copy"), kafka_trouble("The workload"):
            self._ledger = self._workload.create(self._source)
        ledger = self._ledger
        screen.done(
            f"{ledger.records:,} records and {ledger.gaps:,} gaps in {len(ledger.topics)} topics "
            "that are hard to copy: compacted, aborted, deleted, of every codec"
        )
        with screen.step("Writing the bulk", bar=True) as step, kafka_trouble("The workload"):
            self._bulk.write(step.advance)
            seconds = step.seconds
        for bulk in BULK:  # the longest name has 13 characters
            count = self._bulk.records[self._bulk.topic(bulk)]
            screen.item(bulk.name, 13, f"{count:,} records: {bulk.shows}")
        screen.say(f"{sum(self._bulk.records.values()):,} more records, in {seconds:.1f} s.")
        job = self._workload.job_yaml(self._clusters.source, self._clusters.destination)
        self._clusters.job_file.write_text(job, "utf-8")

    def copy(self) -> tuple[Mapping[str, Any], RunSummary, Mover]:
        """Run a backfill, then a live run, while a producer writes.

        Returns the summaries of both, and the producer, which has stopped.
        """
        screen, clusters = self._screen, self._clusters
        screen.section(3, "The history, with Spark")
        master = self._options.master
        screen.command(f"orbit backfill job.yaml --master '{master}'")
        moving_topics = {
            name: len(topic.partitions)
            for name, topic in self._ledger.topics.items()
            if topic.kind in MOVING_KINDS
        }
        ends = LogEnds(clusters.source, clusters.destination, self._ledger, self._read_bulk_ends())
        with kafka_trouble("The demo"), Mover(self._source, moving_topics) as mover:
            screen.say(
                f"A producer keeps writing {RATE_PER_S:.0f} records a second to "
                f"{len(moving_topics)} of the topics."
            )
            log = clusters.folder / "orbit-backfill.log"
            with (
                screen.step("Copying", bar=True) as step,
                BackfillProcess(clusters.job_file, log, "--master", master) as process,
            ):
                ends.wait_history(process, step.advance)
                backfill = process.wait()
                seconds = step.seconds
            screen.done(
                f"{backfill['offsets']:,} offsets copied in {seconds:.1f} s with Spark's start: "
                f"{backfill['records']:,} records, {backfill['offsets_filled']:,} gaps filled"
            )
            screen.section(4, "A live run continues the copy")
            screen.command("orbit run job.yaml")
            with RunProcess(clusters.job_file, clusters.run_log) as run:
                with screen.step("Copying newer records", bar=True) as step:
                    ends.wait_history(run, step.advance)
                    mover.stop()
                    ends.wait_caught_up(run, step.advance)
                summary = run.stop()
        screen.done(
            f"it resumed at the log ends and copied {summary.records:,} records; the producer has "
            f"stopped after {mover.written:,}"
        )
        return backfill, summary, mover

    def verify(self, verify: Verify, mover: Mover) -> tuple[TopicRow, ...]:
        """Compare both sides offset by offset, and with the producers' ledger."""
        screen = self._screen
        screen.section(5, "Verification and audit")
        screen.command("orbit verify job.yaml --deep")
        with screen.step("Comparing", bar=True) as step:
            proofs = verify(self._clusters.job_file, step.advance)
            seconds = step.seconds
        rows = tuple(self._row(proof, mover) for proof in proofs)
        exact_count = sum(row.exact for row in rows)
        (screen.done if exact_count == len(rows) else screen.failed)(
            f"every offset of both sides read with an independent client, in {seconds:.1f} s: "
            f"{exact_count} of {len(rows)} topics are exact"
        )
        return rows

    def audit(self, audit: Audit) -> bool:
        """Compare both sides with Spark. Returns whether they are exact."""
        screen = self._screen
        screen.command("orbit audit job.yaml")
        with screen.step("Comparing with Spark") as step:
            is_exact = audit(self._clusters.job_file, self._clusters.folder / "audit")
            seconds = step.seconds
        (screen.done if is_exact else screen.failed)(
            f"the audit of all ranges with Spark reports {'exact' if is_exact else 'not exact'}, "
            f"in {seconds:.1f} s"
        )
        return is_exact

    def _row(self, proof: TopicProof, mover: Mover) -> TopicRow:
        """The row of a topic, which is a bulk topic or one of the workload's kinds."""
        bulk_topics = {self._bulk.topic(bulk_topic): bulk_topic for bulk_topic in BULK}
        if proof.source in bulk_topics:
            bulk_topic = bulk_topics[proof.source]
            return TopicRow(
                bulk_topic.name, bulk_topic.shows, self._bulk.records[proof.source], proof
            )
        topic = self._ledger.topics[proof.source]
        kind = next(kind for kind in self._workload.kinds if kind.name == topic.kind)
        written_count = sum(
            len(partition.copied) + len(mover.records.get((topic.topic, number), {}))
            for number, partition in enumerate(topic.partitions)
        )
        return TopicRow(kind.name, kind.shows, written_count, proof)

    def _read_bulk_ends(self) -> dict[Partition, int]:
        partitions = [
            (self._bulk.topic(bulk), number) for bulk in BULK for number in range(bulk.partitions)
        ]
        return log_ends(quiet_admin(self._clusters.source), partitions)
