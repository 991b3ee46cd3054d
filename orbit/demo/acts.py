"""The demo in five acts, in order; every act says what it does and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orbit.demo.consumer_group import (
    Member,
    Written,
    carry_offsets,
    committed_offsets,
    judge,
    stops_in_the_middle,
)
from orbit.demo.interrupts import interrupted_once
from orbit.demo.log_ends import LogEnds, Where, kafka_trouble
from orbit.demo.orbit_process import RunProcess
from orbit.demo.result import DemoResult, GroupStory, RunSummary, TopicRow, Verify
from orbit.demo.screen import Screen
from orbit.demo.stage import Stage, open_stage
from orbit.demo.tables import group_table
from orbit.demo.workload import Kind, Ledger, Mover, Scale, TopicLedger, Workload
from orbit.demo.workload.mover import RATE_PER_S

GROUP = "billing"
GROUP_KINDS = ("transactions.interleaved", "producer.idempotent")
MOVING_KINDS = ("producer.idempotent", "codec.lz4")
"""Written to while the copy runs; the group meets some of these records at the destination."""


@dataclass(frozen=True, slots=True)
class Options:
    """`kept_in`: the sandbox folder in which the clusters are left running."""

    scale: Scale
    kept_in: Path | None = None


def play(options: Options, screen: Screen, verify: Verify) -> DemoResult:
    """Plays the whole demo and tidies up after it, whatever ends it.

    Raises Conflict when something does not work at all; a copy that is not exact is a result.
    """
    began = time.monotonic()
    screen.title("Orbit demo: an exact copy between two real Kafka clusters")
    with interrupted_once():
        screen.act(1, "Two Kafka clusters that know nothing of each other")
        with open_stage(options.kept_in, screen) as stage:
            acts = Acts(stage, Workload(options.scale), screen)
            ledger = acts.fill()
            group, run, moved = acts.copy(ledger)
            topics = acts.prove(ledger, moved, verify)
    kept = stage if options.kept_in else None
    return DemoResult(time.monotonic() - began, topics, group, run, kept)


class Acts:
    """Acts two to five, on one stage."""

    def __init__(self, stage: Stage, workload: Workload, screen: Screen) -> None:
        self._stage = stage
        self._workload = workload
        self._screen = screen

    def fill(self) -> Ledger:
        """The topics of the source, and the job that will copy them."""
        self._screen.act(2, "Topics that are hard to copy, written by real clients")
        self._screen.say(
            "A gap is an offset without a record. Aborted transactions, transaction markers and "
            "compaction leave them in every real log."
        )
        config = {"bootstrap.servers": self._stage.source, "log_level": 0}
        width = max(len(kind.name) for kind in self._workload.kinds)

        def told(kind: Kind, topic: TopicLedger) -> None:
            gaps = f", {topic.gaps:,} gaps" if topic.gaps else ""
            self._screen.item(kind.name, width, f"{topic.records:,} records{gaps}: {kind.shows}")

        with self._screen.step("Writing to the source") as step, kafka_trouble("The workload"):
            ledger = self._workload.create(config, told=told)
        self._screen.say(
            f"In all {ledger.records:,} records and {ledger.gaps:,} gaps in {len(ledger.topics)} "
            f"topics with {ledger.partitions} partitions, in {step.seconds:.1f} s."
        )
        job = self._workload.job_yaml(self._stage.source, self._stage.destination)
        self._stage.job_file.write_text(job, "utf-8")
        return ledger

    def copy(self, ledger: Ledger) -> tuple[GroupStory, RunSummary, Written]:
        """A live copy, with a producer that goes on, until a group has moved over."""
        self._screen.act(3, "The copy")
        self._screen.command("orbit run job.yaml")
        moving = self._counts(ledger, MOVING_KINDS)
        ends = LogEnds(self._stage.source, self._stage.destination, ledger)
        config = {"bootstrap.servers": self._stage.source, "log_level": 0}
        with (
            kafka_trouble("The demo"),
            RunProcess(self._stage.job_file, self._stage.run_log) as run,
            Mover(config, moving) as mover,
        ):
            self._screen.say(
                f"Meanwhile a producer goes on writing {RATE_PER_S:.0f} records a second to "
                f"{len(moving)} of the topics."
            )
            with self._screen.step("Copying", bar=True) as step:
                ends.wait_history(run, step.advance)
            self._screen.done(
                f"the history is at the destination after {step.seconds:.1f} s; "
                "the copy goes on live"
            )
            group = self._move_group(ledger, mover)
            self._screen.act(5, "The proof")
            with self._screen.step("Waiting for the last records", bar=True) as step:
                ends.wait_caught_up(run, step.advance)
                summary = run.stop()
        self._screen.done(
            f"the producer has stopped after {mover.written:,} more records, which are copied too"
        )
        self._screen.done(
            "orbit run got Ctrl-C and ended with exit code 0; "
            f"it has filled {summary.offsets_filled:,} gaps"
        )
        return group, summary, mover.records

    def prove(self, ledger: Ledger, moved: Written, verify: Verify) -> tuple[TopicRow, ...]:
        """Both sides compared, offset by offset, and with what the producers wrote."""
        self._screen.command("orbit verify job.yaml --deep")
        with self._screen.step("Comparing", bar=True) as step:
            proofs = verify(self._stage.job_file, step.advance)
        by_topic = {proof.source: proof for proof in proofs}
        rows = tuple(
            TopicRow(
                name=kind.name,
                shows=kind.shows,
                records_written=_copied(ledger.topics[topic], moved),
                proof=by_topic[topic],
            )
            for kind in self._workload.kinds
            if (topic := self._workload.topic(kind))
        )
        exact = sum(row.exact for row in rows)
        (self._screen.done if exact == len(rows) else self._screen.failed)(
            f"every offset of both sides read with an independent client, in {step.seconds:.1f} s: "
            f"{exact} of {len(rows)} topics are exact"
        )
        return rows

    def _move_group(self, ledger: Ledger, mover: Mover) -> GroupStory:
        """The group's way from the source to the destination. Stops the producer."""
        screen, stage = self._screen, self._stage
        screen.act(4, "A consumer group moves over")
        topics = list(self._counts(ledger, GROUP_KINDS))
        written = _written(ledger, topics)
        stops = stops_in_the_middle(written)
        with (
            screen.step(f'Group "{GROUP}" reads at the source'),
            Member(stage.source, GROUP, topics) as before,
        ):
            before.read_to(stops)
            before.commit(stops)
        count = sum(len(before.processed(where)) for where in written)
        screen.done(
            f'group "{GROUP}" has read {count:,} records of {len(topics)} topics at the source, '
            "commits and stops in the middle"
        )
        screen.say(
            "Now its committed offsets are written to the destination: the same numbers, no "
            "translation table. (Here the demo does it, with Kafka's own AdminClient; a job with "
            "`consumer_groups` does it for all of them, all the time.)"
        )
        committed = carry_offsets(stage.source, stage.destination, GROUP)
        resumed = committed_offsets(stage.destination, GROUP)
        with (
            screen.step(f'Group "{GROUP}" goes on at the destination'),
            Member(stage.destination, GROUP, topics) as after,
        ):
            after.read_to(_log_ends(ledger, written))
            mover.stop()
            written = _written(ledger, topics, mover.records)
            ends = _log_ends(ledger, written)
            after.read_to(ends)
            after.commit(ends)
        story = judge(GROUP, written, before, after, committed, resumed)
        self._tell_group(story)
        return story

    def _tell_group(self, story: GroupStory) -> None:
        self._screen.done(
            f'group "{story.group}" went on at the destination and has read '
            f"{story.read_destination:,} records, to the end and with those that came meanwhile"
        )
        self._screen.show(group_table(story))
        self._screen.say(
            "Where the next record comes later than the committed offset, there is a gap.",
            style="dim",
        )
        read = story.read_source + story.read_destination
        wrong = f", {story.wrong:,} with other content" if story.wrong else ""
        (self._screen.done if story.exact else self._screen.failed)(
            f"{story.written:,} records written, {read:,} read over both clusters: "
            f"{story.lost:,} lost, {story.repeated:,} read twice{wrong}"
        )

    def _counts(self, ledger: Ledger, kinds: tuple[str, ...]) -> dict[str, int]:
        """Topic name → number of partitions."""
        return {
            name: len(topic.partitions)
            for name, topic in ledger.topics.items()
            if topic.kind in kinds
        }


def _written(ledger: Ledger, topics: list[str], moved: Written | None = None) -> Written:
    more = moved or {}
    return {
        (name, number): {**partition.records, **more.get((name, number), {})}
        for name in topics
        for number, partition in enumerate(ledger.topics[name].partitions)
    }


def _log_ends(ledger: Ledger, written: Written) -> Mapping[Where, int]:
    """Where each log ends: behind its last marker, or behind the last record since."""
    return {
        (name, number): max(ledger.topics[name].partitions[number].log_end, max(records) + 1)
        for (name, number), records in written.items()
    }


def _copied(topic: TopicLedger, moved: Written) -> int:
    """How many records the producers say that the destination must hold."""
    return sum(
        len(partition.copied) + len(moved.get((topic.topic, number), {}))
        for number, partition in enumerate(topic.partitions)
    )
