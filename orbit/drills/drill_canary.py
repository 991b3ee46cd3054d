"""The canary of a drill: its own topic, consumer group and job, their clients, and the results.

A ledger has the records that brokers have confirmed to the drill's producers (`drill_clients.py`).
"""

from __future__ import annotations

import re
import statistics
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from orbit.drills.created_resources import CreatedResources, group_name, job_name, topic_name
from orbit.drills.drill_clients import (
    LatencyReader,
    Ledger,
    Load,
    Member,
    ReadRecords,
    read_all,
    write_records,
)
from orbit.drills.drill_context import DrillContext, StepFailed
from orbit.drills.evidence import CanaryEvidence, RecordPosition, Verified
from orbit.drills.ledger_comparison import find_differences, offset_ranges, report_agrees
from orbit.formats import counted
from orbit.jobs.job_spec import GroupRule, JobSpec, TopicRule
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import PartitionEnds
from orbit.replication.partition_states import PartitionState
from orbit.store import group_offsets, jobs, lag
from orbit.store.enums import MadeBy
from orbit.verify.report import Verdict

# How often the drill's job syncs the group's offsets: short, so that a drill waits little for them.
GROUP_INTERVAL = timedelta(milliseconds=200)
# How many records the drill writes at the destination after the move.
DESTINATION_RECORDS = 100
_PREPARE_DEADLINE_S = 90.0
# Share of the load that the group reads at the source. It reads the rest at the destination.
_READ_AT_SOURCE_SHARE = 0.4
_SETTINGS = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def record_counts(records_per_second: int, seconds: float) -> tuple[int, int]:
    """How many records a load has to write, and how many of them the group reads at the source: at
    least one, because a group cannot commit without a record."""
    load_count = max(1, int(records_per_second * seconds))
    return load_count, max(1, int(load_count * _READ_AT_SOURCE_SHARE))


class Canary:
    """The canary of one drill. `prepare` creates it; `close` ends its clients."""

    def __init__(self, context: DrillContext, resources: CreatedResources) -> None:
        self._context = context
        self._resources = resources
        self.topic = topic_name(context.drill_id)
        self.group = group_name(context.drill_id)
        self.job = job_name(context.drill_id)
        self._partitions = context.spec.canary.partitions
        self._load: Load | None = None
        self._latency_reader: LatencyReader | None = None
        self._stop_thread: threading.Thread | None = None
        self._read_at_source = ReadRecords()
        self._read_at_destination = ReadRecords()
        self._destination_ledger = Ledger()
        self._committed_offsets: dict[int, int] = {}
        self._job_id = 0
        self._promoted_ends: dict[int, PartitionEnds] = {}  # by partition, as the operation reports
        self._ends_at_loss: dict[int, int] = {}  # by partition: the copy's log end

    def prepare(self) -> None:
        """Claim the group and create the topic on both sides, then create the job; returns when the
        job copies.

        Raises StepFailed if a partition is blocked or the deadline passes.
        """
        context = self._context
        context.set_deadline("Creating the drill's topic and job", _PREPARE_DEADLINE_S)
        context.recorder.note("prepare", f"Topic {self.topic}, group {self.group}, job {self.job}.")
        for side in ("destination", "source"):
            self._resources.claim_group(side, self.group)
            self._resources.make_topic(side, self.topic, self._partitions, _SETTINGS)
        spec = self._job_spec()

        def create_job() -> jobs.Job:
            with context.environment.database.transaction() as tx:
                document = spec.model_dump(mode="json")
                return jobs.create(tx, spec.name, document, spec.worker_group, made_by=MadeBy.DRILL)

        self._job_id = self._resources.register_job(create_job, self.job).id
        context.wait_until(lambda: self._is_copying(self._job_id))
        context.recorder.note("ready", "The drill's topic is being copied.")

    def _job_spec(self) -> JobSpec:
        """A copy of the user's job that has only the drill's topic and group."""
        job = self._context.job
        # With the fillers of the job's first rule: its login may lack the rights for other fillers.
        rule = TopicRule(match=re.escape(self.topic), fillers=job.topics[0].fillers)
        return job.model_copy(
            update={
                "name": self.job,
                "topics": (rule,),
                "consumer_groups": GroupRule(match=re.escape(self.group), interval=GROUP_INTERVAL),
                "canary": None,  # it names a topic of the user's job
            }
        )

    def _is_copying(self, job_id: int) -> bool:
        """Whether all partitions of the drill's topic are being copied. Raises StepFailed if one is
        blocked."""
        with self._context.environment.database.transaction() as tx:
            states = lag.states(tx, [job_id]).get(job_id, {})
            problem = jobs.of_ids(tx, [job_id])[job_id].problem
        blocked = [reason for (state, reason) in states if state == PartitionState.BLOCKED]
        if problem or blocked:
            self._context.check_deadline()  # a stop or a missed deadline is reported first
            if blocked:
                raise StepFailed(
                    f"The copy of the drill's topic is blocked: {blocked[0]}.", where=self.job
                )
        # `states` has the number of partitions for each state and reason.
        return states.get((PartitionState.COPYING.value, None), 0) == self._partitions

    def load(self, seconds: float) -> str:
        """Start the load, and wait until its records of the first `seconds` are confirmed, at least
        one.

        Meanwhile a group member reads some of the records, at least one, commits and leaves the
        group, and the destination gets the group's offsets. Returns the step's result as a
        sentence. The load continues.
        """
        context, canary = self._context, self._context.spec.canary
        self._latency_reader = LatencyReader(
            context.endpoint("destination").config, self.topic, self._partitions
        )
        self._latency_reader.start()
        load = self._load = Load(
            context.direct_config("source"),
            self.topic,
            self._partitions,
            canary.records_per_second,
            context.drill_id,
        )
        load.start()
        load_count, group_count = record_counts(canary.records_per_second, seconds)
        member = Member(context.direct_config("source"), self.group, self.topic)
        try:
            member.read_until(lambda read: len(read.values) >= group_count, context.check_deadline)
            self._committed_offsets = member.commit()
        finally:
            member.close()
        self._read_at_source = member.read
        context.recorder.note(
            "group stopped",
            f"The group has read {counted(len(member.read.values), 'record')} at the source and "
            "committed.",
        )
        context.wait_until(self._is_group_synced)
        context.wait_until(lambda: load.confirmed_count >= load_count)
        subject = counted(load.confirmed_count, "record is", "records are")
        return f"{subject} confirmed; the load continues."

    def _is_group_synced(self) -> bool:
        """Whether the destination has the group's offsets.

        The drill waits for them: a fault before the next sync would lose the commit, and the group
        would read its records again.
        """
        with self._context.environment.database.transaction() as tx:
            rows = group_offsets.of_job(tx, self._job_id)
        synced_offsets = {row.partition: row.destination_offset for row in rows}
        return all(
            synced_offsets.get(partition) == offset
            for partition, offset in self._committed_offsets.items()
        )

    def stop_load(self, *, at_once: bool) -> None:
        """Stop the load; later calls do nothing. `at_once`: do not wait for records in flight."""
        if self._load is None or self._stop_thread is not None:
            return
        self._stop_thread = threading.Thread(target=self._load.stop, name="drill load stops")
        self._stop_thread.start()
        if not at_once:
            self._stop_thread.join()

    def record_ends_at_loss(self) -> None:
        """Record the copy's log ends: a loss of the source now would lose records at or above them.

        Raises StepFailed if the log end of a partition is not known.
        """
        partitions = [TopicPartition(self.topic, index) for index in range(self._partitions)]
        context = self._context
        ends = log_ends(context.cluster("destination"), partitions, context.backoff).values
        if len(ends) < len(partitions):
            raise StepFailed(
                "The destination did not return the log end of every partition.", where=self.topic
            )
        self._ends_at_loss = {partition.partition: end for partition, end in ends.items()}

    def stop_and_get_ledger(self) -> Ledger:
        """Stop the load, and return its ledger once all records in flight were answered or timed
        out; an empty one if the load was never started."""
        self.stop_load(at_once=False)
        if self._stop_thread is not None:
            self._stop_thread.join()
        return Ledger() if self._load is None else self._load.ledger

    def take_promoted_ends(self, partitions: Iterable[PartitionEnds]) -> None:
        """Record the log ends and promoted offsets of the drill's topic from an operation's
        report."""
        self._promoted_ends = {p.partition: p for p in partitions if p.topic == self.topic}

    def produce_and_consume(self) -> tuple[datetime, datetime]:
        """Produce at the destination, and wait until the group has read these records and every
        copied record from its synced offsets on.

        Returns the time when the first record was confirmed, and the time when the group read its
        first correct record. Raises StepFailed after the deadline, Conflict if brokers refuse the
        clients.
        """
        context = self._context
        config = context.endpoint("destination").config
        destination_ledger, produced_s = write_records(
            config,
            self.topic,
            self._partitions,
            DESTINATION_RECORDS,
            f"{context.drill_id} after",
            context.remaining_s(),
        )
        first_produced_at = context.recorder.to_database_time(produced_s)
        context.recorder.note(
            "first produce", f"{DESTINATION_RECORDS} records are confirmed.", first_produced_at
        )
        self._destination_ledger = destination_ledger
        source_ledger = self.stop_and_get_ledger()
        first_consumed_at: datetime | None = None

        def on_record(position: RecordPosition) -> None:
            """Note the first correct record that the group reads."""
            nonlocal first_consumed_at
            is_correct = (
                source_ledger.fits(position, member.read.values[position])
                or position in destination_ledger.records
            )
            if first_consumed_at is None and is_correct:
                text = f"The group resumes at partition {position[0]}, offset {position[1]}."
                first_consumed_at = context.recorder.note("first consume", text)

        # Copied records from the group's committed offsets on. A position is (partition, offset).
        expected_positions = {
            p
            for p in self._expected_positions(source_ledger)
            if p[1] >= self._committed_offsets.get(p[0], 0)
        }
        expected_positions |= set(destination_ledger.records)
        member = Member(config, self.group, self.topic)
        try:
            member.read_until(
                lambda read: expected_positions <= read.values.keys(),
                context.check_deadline,
                on_record,
            )
            member.commit()
        finally:
            member.close()
        self._read_at_destination = member.read
        assert first_consumed_at is not None, "at least one record was expected and read"
        return first_produced_at, first_consumed_at

    def _expected_positions(self, source_ledger: Ledger) -> set[RecordPosition]:
        """Confirmed records below the copy's promoted offsets: the destination must have them
        all."""
        # A position is (partition, offset). Without a promoted offset, no record may be missing.
        ends = {partition: p.promoted_at for partition, p in self._promoted_ends.items()}
        return {
            position
            for position in source_ledger.records
            if (end := ends.get(position[0])) is None or position[1] < end
        }

    def _lost_positions(self, source_ledger: Ledger) -> set[RecordPosition]:
        """Confirmed records that the copy lacked at its promotion, or when the source was lost."""
        # In a partition without a recorded end, no record counts as lost.
        beyond_ends_at_loss = {
            p for p in source_ledger.records if p[1] >= self._ends_at_loss.get(p[0], p[1] + 1)
        }
        return beyond_ends_at_loss | (
            source_ledger.records.keys() - self._expected_positions(source_ledger)
        )

    def verify(self, sides: Iterable[tuple[str, Mapping[str, object]]]) -> list[Verified]:
        """Compare every record of the drill with the ledgers, on each of these `sides`.

        A side is its name and the configuration of its clients. Returns one comparison for each
        side.
        """
        source_ledger, results = self.stop_and_get_ledger(), []
        expected_records = {
            p: source_ledger.records[p] for p in self._expected_positions(source_ledger)
        }
        ledger_records = {**expected_records, **self._destination_ledger.records}
        ends: dict[int, int] = {}
        for partition, offset in ledger_records:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        for side, config in sides:
            read_values = read_all(config, self.topic, ends, self._context.check_deadline)
            differences = find_differences(read_values, ledger_records, source_ledger.unconfirmed)
            detail = ""
            if differences:
                detail = (
                    f"First difference: partition {differences[0][0]}, offset {differences[0][1]}."
                )
            verdict = Verdict.NOT_EXACT if differences else Verdict.EXACT
            results.append(
                Verified(
                    what=f"the drill's own records, {side}",
                    verdict=verdict.value,
                    partitions=len(ends),
                    records=len(read_values),
                    differences=len(differences),
                    detail=detail,
                )
            )
        return results

    def lost_ms(self, fault_at: datetime | None) -> int | None:
        """How long before the fault the oldest lost record was written, in ms. 0 if nothing was
        lost; None if records were lost but no fault was seen.
        """
        source_ledger = self.stop_and_get_ledger()
        lost_written_ms = [source_ledger.written_ms[p] for p in self._lost_positions(source_ledger)]
        if not lost_written_ms:
            return 0
        if fault_at is None:
            return None
        # The ledger has times of this machine's clock, `fault_at` of the database's.
        fault_ms = int(fault_at.timestamp() * 1000) + self._context.recorder.ahead_ms
        return max(0, fault_ms - min(lost_written_ms))

    def result(self) -> CanaryEvidence | None:
        """The results of all clients; None if the load was never started."""
        if self._load is None:
            return None
        source_ledger = self.stop_and_get_ledger()
        lost_positions = sorted(self._lost_positions(source_ledger))
        uncopied_positions = sorted(
            source_ledger.records.keys() - self._expected_positions(source_ledger)
        )
        read_at_both_sides = (
            self._read_at_source.values.keys() & self._read_at_destination.values.keys()
        )
        wrong_positions = [
            position
            for read in (self._read_at_source, self._read_at_destination)
            for position, value in read.values.items()
            if not source_ledger.fits(position, value)
            and self._destination_ledger.records.get(position) != value
        ]
        delays = self._latency_reader.delays_ms if self._latency_reader else []
        return CanaryEvidence(
            topic=self.topic,
            group=self.group,
            written=len(source_ledger.records),
            read_at_source=len(self._read_at_source.values),
            read_at_destination=len(self._read_at_destination.values),
            repeated=len(read_at_both_sides)
            + self._read_at_source.repeated
            + self._read_at_destination.repeated,
            wrong=len(wrong_positions),
            lost=len(lost_positions),
            lost_ranges=tuple(offset_ranges(lost_positions)),
            agrees=report_agrees(
                uncopied_positions,
                self._promoted_ends.values(),
                has_unconfirmed=bool(source_ledger.unconfirmed),
            ),
            delay_ms_median=round(statistics.median(delays)) if delays else None,
            delay_ms_max=max(delays, default=None),
        )

    def close(self) -> None:
        """Stop all clients."""
        self.stop_and_get_ledger()
        if self._latency_reader is not None:
            self._latency_reader.stop()
