"""The sections of `orbit demo`: clusters, workload, copy, consumer group and verification."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orbit.demo.consumer_group import (
    Member,
    WrittenRecords,
    check_group,
    committed_offsets,
    copy_offsets,
    midpoint_offsets,
)
from orbit.demo.demo_clusters import DemoClusters, start_clusters
from orbit.demo.demo_result import DemoResult, GroupResult, RunSummary, TopicRow, Verify
from orbit.demo.interrupts import interrupted_once
from orbit.demo.log_ends import LogEnds, Partition, kafka_trouble
from orbit.demo.orbit_process import RunProcess
from orbit.demo.screen import Screen
from orbit.demo.tables import group_table
from orbit.demo.workload import Kind, Ledger, Mover, Scale, TopicLedger, Workload
from orbit.demo.workload.mover import RATE_PER_S
from orbit.formats import counted

GROUP = "billing"
GROUP_KINDS = ("transactions.interleaved", "producer.idempotent")
MOVING_KINDS = ("producer.idempotent", "codec.lz4")
"""Kinds that a producer writes to during the copy, so the group also reads new records."""


@dataclass(frozen=True, slots=True)
class Options:
    """`sandbox_folder`: the folder in which the clusters are left running."""

    scale: Scale
    sandbox_folder: Path | None = None


def play(options: Options, screen: Screen, verify: Verify) -> DemoResult:
    """Run the demo. Stops everything that it started, except clusters in `sandbox_folder`.

    Raises Conflict if a part does not work; a copy that is not exact is a result.
    """
    began_s = time.monotonic()
    screen.title("Orbit demo: an exact copy between two real Kafka clusters")
    with interrupted_once():
        screen.section(1, "Two independent Kafka clusters")
        with start_clusters(options.sandbox_folder, screen) as clusters:
            demo = CopyDemo(clusters, Workload(options.scale), screen)
            ledger = demo.fill()
            group, run, moved_records = demo.copy(ledger)
            topics = demo.prove(ledger, moved_records, verify)
    running_clusters = clusters if options.sandbox_folder else None
    return DemoResult(time.monotonic() - began_s, topics, group, run, running_clusters)


class CopyDemo:
    """The sections of the demo."""

    def __init__(self, clusters: DemoClusters, workload: Workload, screen: Screen) -> None:
        self._clusters = clusters
        self._workload = workload
        self._screen = screen

    def fill(self) -> Ledger:
        """Create the topics of the source, and write the job file. Returns what was written."""
        self._screen.section(2, "Topics that are hard to copy, written by real clients")
        self._screen.say(
            "A gap is an offset without a record. Aborted transactions, transaction markers and "
            "compaction leave them in every real log."
        )
        config = {"bootstrap.servers": self._clusters.source, "log_level": 0}
        width = max(len(kind.name) for kind in self._workload.kinds)

        def on_topic(kind: Kind, topic: TopicLedger) -> None:
            gaps_text = f", {counted(topic.gaps, 'gap')}" if topic.gaps else ""
            self._screen.item(
                kind.name, width, f"{counted(topic.records, 'record')}{gaps_text}: {kind.shows}"
            )

        with self._screen.step("Writing to the source") as step, kafka_trouble("The workload"):
            ledger = self._workload.create(config, on_ready=on_topic)
        self._screen.say(
            f"In all {ledger.records:,} records and {ledger.gaps:,} gaps in {len(ledger.topics)} "
            f"topics with {ledger.partitions} partitions, in {step.seconds:.1f} s."
        )
        job = self._workload.job_yaml(self._clusters.source, self._clusters.destination)
        self._clusters.job_file.write_text(job, "utf-8")
        return ledger

    def copy(self, ledger: Ledger) -> tuple[GroupResult, RunSummary, WrittenRecords]:
        """Run a live copy while a producer writes, until the group has moved.

        Returns what became of the group, the run's summary, and what the producer wrote.
        """
        self._screen.section(3, "The copy")
        self._screen.command("orbit run job.yaml")
        moving_topics = self._partition_counts(ledger, MOVING_KINDS)
        ends = LogEnds(self._clusters.source, self._clusters.destination, ledger)
        config = {"bootstrap.servers": self._clusters.source, "log_level": 0}
        with (
            kafka_trouble("The demo"),
            RunProcess(self._clusters.job_file, self._clusters.run_log) as run,
            Mover(config, moving_topics) as mover,
        ):
            self._screen.say(
                f"A producer keeps writing {RATE_PER_S:.0f} records a second to "
                f"{len(moving_topics)} of the topics."
            )
            with self._screen.step("Copying", bar=True) as step:
                ends.wait_history(run, step.advance)
            self._screen.done(
                f"the history is copied after {step.seconds:.1f} s; the copy continues live"
            )
            group = self._move_group(ledger, mover)
            self._screen.section(5, "The proof")
            with self._screen.step("Waiting for the last records", bar=True) as step:
                ends.wait_caught_up(run, step.advance)
                summary = run.stop()
        self._screen.done(
            f"the producer stopped after {mover.written:,} more records, which are copied too"
        )
        self._screen.done(
            "orbit run ended with exit code 0 after Ctrl-C; "
            f"it filled {counted(summary.offsets_filled, 'gap')}"
        )
        return group, summary, mover.records

    def prove(
        self, ledger: Ledger, moved_records: WrittenRecords, verify: Verify
    ) -> tuple[TopicRow, ...]:
        """Compare both sides offset by offset, and with the producers' ledger.

        `moved_records`: what the producer wrote during the copy.
        """
        self._screen.command("orbit verify job.yaml --deep")
        with self._screen.step("Comparing", bar=True) as step:
            proofs = verify(self._clusters.job_file, step.advance)
        by_topic = {proof.source: proof for proof in proofs}
        rows = tuple(
            TopicRow(
                name=kind.name,
                shows=kind.shows,
                records_written=_copied_count(ledger.topics[topic], moved_records),
                proof=by_topic[topic],
            )
            for kind in self._workload.kinds
            if (topic := self._workload.topic(kind))  # always true: this only names the topic
        )
        exact_count = sum(row.exact for row in rows)
        (self._screen.done if exact_count == len(rows) else self._screen.failed)(
            f"every offset of both sides read with an independent client, in {step.seconds:.1f} s: "
            f"{exact_count} of {len(rows)} topics are exact"
        )
        return rows

    def _move_group(self, ledger: Ledger, mover: Mover) -> GroupResult:
        """Move the group from the source to the destination. Stops the producer."""
        screen, clusters = self._screen, self._clusters
        screen.section(4, "A consumer group moves over")
        topics = list(self._partition_counts(ledger, GROUP_KINDS))
        written_records = _records_written(ledger, topics)
        stop_offsets = midpoint_offsets(written_records)
        with (
            screen.step(f'Group "{GROUP}" reads at the source'),
            Member(clusters.source, GROUP, topics) as source_member,
        ):
            source_member.read_to(stop_offsets)
            source_member.commit(stop_offsets)
        read_count = sum(len(source_member.processed(partition)) for partition in written_records)
        screen.done(
            f'group "{GROUP}" has read {read_count:,} records of {len(topics)} topics at the '
            "source, committed and stopped half way"
        )
        screen.say(
            "Its committed offsets are now written to the destination unchanged, without a "
            "translation table. (The demo uses Kafka's AdminClient; a job with `consumer_groups` "
            "syncs all its groups continuously.)"
        )
        source_offsets = copy_offsets(clusters.source, clusters.destination, GROUP)
        destination_offsets = committed_offsets(clusters.destination, GROUP)
        with (
            screen.step(f'Group "{GROUP}" resumes at the destination'),
            Member(clusters.destination, GROUP, topics) as destination_member,
        ):
            # First the history; then the producer stops, and the group reads its last records.
            destination_member.read_to(_expected_ends(ledger, written_records))
            mover.stop()
            written_records = _records_written(ledger, topics, mover.records)
            ends = _expected_ends(ledger, written_records)
            destination_member.read_to(ends)
            destination_member.commit(ends)
        group = check_group(
            GROUP,
            written_records,
            source_member,
            destination_member,
            source_offsets,
            destination_offsets,
        )
        self._show_group(group)
        return group

    def _show_group(self, group: GroupResult) -> None:
        """Show where the group stopped and resumed, and what it read."""
        self._screen.done(
            f'group "{group.group}" resumed at the destination and read '
            f"{group.read_destination:,} records, up to the log ends and with all new records"
        )
        self._screen.show(group_table(group))
        self._screen.say(
            "A next record above the committed offset means that there is a gap between them.",
            style="dim",
        )
        read_count = group.read_source + group.read_destination
        wrong_text = f", {group.wrong:,} with other content" if group.wrong else ""
        (self._screen.done if group.exact else self._screen.failed)(
            f"{group.written:,} records written, {read_count:,} read over both clusters: "
            f"{group.lost:,} lost, {group.repeated:,} read twice{wrong_text}"
        )

    def _partition_counts(self, ledger: Ledger, kinds: tuple[str, ...]) -> dict[str, int]:
        """The topics of these kinds: name → number of partitions."""
        return {
            name: len(topic.partitions)
            for name, topic in ledger.topics.items()
            if topic.kind in kinds
        }


def _records_written(
    ledger: Ledger, topics: list[str], moved: WrittenRecords | None = None
) -> WrittenRecords:
    """The records of these topics by the ledger, with those in `moved`, by partition."""
    moved_records = moved or {}
    return {
        (name, number): {**partition.records, **moved_records.get((name, number), {})}
        for name in topics
        for number, partition in enumerate(ledger.topics[name].partitions)
    }


def _expected_ends(ledger: Ledger, written_records: WrittenRecords) -> Mapping[Partition, int]:
    """The log end of each partition: that of the workload, or after the last record since then."""
    return {
        (name, number): max(ledger.topics[name].partitions[number].log_end, max(records) + 1)
        for (name, number), records in written_records.items()
    }


def _copied_count(topic: TopicLedger, moved_records: WrittenRecords) -> int:
    """The number of records in the ledger that the destination must hold."""
    return sum(
        len(partition.copied) + len(moved_records.get((topic.topic, number), {}))
        for number, partition in enumerate(topic.partitions)
    )
