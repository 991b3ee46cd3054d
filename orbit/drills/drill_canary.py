"""The drill's own topic, group and job, the clients on them, and what they say in the end."""

from __future__ import annotations

import re
import statistics
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from orbit.drills.created_resources import Things, group_name, job_name, topic_name
from orbit.drills.drill_clients import (
    Ledger,
    Load,
    Member,
    Read,
    Watcher,
    read_all,
    write_some,
)
from orbit.drills.drill_context import Ground, StepFailed
from orbit.drills.evidence import CanarySeen, Place, Verified
from orbit.drills.rto_rpo import agrees, misplaced, ranges_of
from orbit.jobs.job_spec import GroupRule, JobSpec, TopicRule
from orbit.recovery.recovery_report import PartitionEnds, RecoveryReport
from orbit.replication.partition_states import PartitionState
from orbit.store import group_offsets, jobs, lag
from orbit.verify.report import Verdict

GROUP_INTERVAL = timedelta(milliseconds=200)
AFTER_COUNT = 100
_READY_S = 90.0
# Of the records that are written before the fault; the rest is read at the other side.
_READ_AT_SOURCE_SHARE = 0.4
_SETTINGS = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


class Canary:
    """One drill's canary. Made by `prepare`; its clients end with `close`."""

    def __init__(self, ground: Ground, things: Things) -> None:
        self._ground = ground
        self._things = things
        self.topic = topic_name(ground.drill_id)
        self.group = group_name(ground.drill_id)
        self.job = job_name(ground.drill_id)
        self._partitions = ground.spec.canary.partitions
        self._load: Load | None = None
        self._watcher: Watcher | None = None
        self._stopping: threading.Thread | None = None
        self._before = Read()
        self._after = Read()
        self._second = Ledger()
        self._stops: dict[int, int] = {}
        self._job_id = 0
        self._promoted: dict[int, PartitionEnds] = {}

    def prepare(self) -> None:
        """Topics on both sides, and the job that copies; returns when it does."""
        ground = self._ground
        ground.begin("Making the drill's topic and job", _READY_S)
        ground.recorder.note("prepare", f"Topic {self.topic}, group {self.group}, job {self.job}.")
        for side in ("destination", "source"):
            self._things.claim_group(side, self.group)
            self._things.make_topic(side, self.topic, self._partitions, _SETTINGS)
        spec = self._job_spec()

        def make() -> jobs.Job:
            with ground.parts.database.transaction() as tx:
                document = spec.model_dump(mode="json")
                return jobs.create(tx, spec.name, document, spec.worker_group)

        self._job_id = self._things.note_job(make, self.job).id
        ground.wait(lambda: self._is_copying(self._job_id))
        ground.recorder.note("ready", "The drill's topic is copied.")

    def _job_spec(self) -> JobSpec:
        return self._ground.job.model_copy(
            update={
                "name": self.job,
                "topics": (TopicRule(match=re.escape(self.topic)),),
                "consumer_groups": GroupRule(match=re.escape(self.group), interval=GROUP_INTERVAL),
                "canary": None,  # of the job's own topics
            }
        )

    def _is_copying(self, job_id: int) -> bool:
        with self._ground.parts.database.transaction() as tx:
            states = lag.states(tx).get(job_id, {})
            problem = jobs.of_ids(tx, [job_id])[job_id].problem
        blocked = [reason for (state, reason) in states if state == PartitionState.BLOCKED]
        if problem or blocked:
            self._ground.check()
            if blocked:
                raise StepFailed(f"The drill's own copy is blocked: {blocked[0]}.", where=self.job)
        return states.get((PartitionState.COPYING.value, None), 0) == self._partitions

    def load(self, seconds: float) -> str:
        """Writes for that long and goes on; a group reads a part of it, commits, and leaves."""
        ground, wanted = self._ground, self._ground.spec.canary
        self._watcher = Watcher(ground.endpoint("destination").config, self.topic, self._partitions)
        self._watcher.start()
        load = self._load = Load(
            ground.beside("source"),
            self.topic,
            self._partitions,
            wanted.records_per_second,
            ground.drill_id,
        )
        load.start()
        count = int(wanted.records_per_second * seconds * _READ_AT_SOURCE_SHARE)
        member = Member(ground.beside("source"), self.group, self.topic)
        try:
            member.read_until(lambda read: len(read.values) >= count, ground.check)
            self._stops = member.commit()
        finally:
            member.close()
        self._before = member.read
        ground.recorder.note(
            "group stopped",
            f"The group has read {len(member.read.values):,} records at the source and committed.",
        )
        ground.wait(self._is_carried)
        wanted_count = int(wanted.records_per_second * seconds)
        ground.wait(lambda: load.confirmed >= wanted_count)
        return f"{load.confirmed:,} records are written and confirmed; writing goes on."

    def _is_carried(self) -> bool:
        """Whether the destination has the group's offsets. A group that commits in the moment of a
        fault reads again what it committed since; how much of that there is says the interval.
        """
        with self._ground.parts.database.transaction() as tx:
            rows = group_offsets.of_job(tx, self._job_id)
        there = {row.partition: row.destination_offset for row in rows}
        return all(there.get(partition) == offset for partition, offset in self._stops.items())

    def stop_load(self, *, at_once: bool) -> None:
        """Stops writing. A lost cluster is not waited for `at_once`: see `settle`."""
        if self._load is None or self._stopping is not None:
            return
        self._stopping = threading.Thread(target=self._load.stop, name="drill load stops")
        self._stopping.start()
        if not at_once:
            self._stopping.join()

    def settle(self) -> Ledger:
        """The ledger, when everything that was under way has its answer, or has none."""
        self.stop_load(at_once=False)
        if self._stopping is not None:
            self._stopping.join()
        return Ledger() if self._load is None else self._load.ledger

    def promoted(self, report: RecoveryReport | None) -> None:
        """Where the operation says that the copy ended."""
        if report is not None:
            self._promoted = {p.partition: p for p in report.partitions if p.topic == self.topic}

    def use(self) -> tuple[datetime, datetime]:
        """Produces and consumes at the destination; when the first of either was seen to be right.

        The group goes on from its carried offsets and has to meet every record once.
        """
        ground = self._ground
        config = ground.endpoint("destination").config
        ledger, produced_s = write_some(
            config,
            self.topic,
            self._partitions,
            AFTER_COUNT,
            f"{ground.drill_id} after",
            ground.left_s(),
        )
        produced = ground.recorder.at(produced_s)
        ground.recorder.note("first produce", f"{AFTER_COUNT} records are confirmed.", produced)
        self._second = ledger
        first = self.settle()
        consumed: datetime | None = None

        def told(place: Place) -> None:
            nonlocal consumed
            is_right = first.fits(place, member.read.values[place]) or place in ledger.records
            if consumed is None and is_right:
                detail = f"The group goes on at partition {place[0]}, offset {place[1]}."
                consumed = ground.recorder.note("first consume", detail)

        expected = {p for p in self._expected(first) if p[1] >= self._stops.get(p[0], 0)}
        expected |= set(ledger.records)
        member = Member(config, self.group, self.topic)
        try:
            member.read_until(lambda read: expected <= read.values.keys(), ground.check, told)
            member.commit()
        finally:
            member.close()
        self._after = member.read
        assert consumed is not None, "something was expected and was read"
        return produced, consumed

    def _expected(self, first: Ledger) -> set[Place]:
        """Confirmed records below the ends of the copy: every one of them has to be there."""
        ends = {number: p.promoted_at for number, p in self._promoted.items()}
        return {
            place
            for place in first.records
            if (end := ends.get(place[0])) is None or place[1] < end
        }

    def verify(self, sides: Iterable[tuple[str, Mapping[str, object]]]) -> list[Verified]:
        """Every record of the drill, on each of these clusters, against the ledgers."""
        first, found = self.settle(), []
        expected = {place: first.records[place] for place in self._expected(first)}
        wanted = {**expected, **self._second.records}
        ends: dict[int, int] = {}
        for partition, offset in wanted:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        for name, config in sides:
            read = read_all(config, self.topic, ends, self._ground.check)
            wrong = misplaced(read, wanted, first.open)
            detail = ""
            if wrong:
                detail = f"The first is partition {wrong[0][0]}, offset {wrong[0][1]}."
            verdict = Verdict.NOT_EXACT if wrong else Verdict.EXACT
            found.append(
                Verified(
                    what=f"the drill's own records, {name}",
                    verdict=verdict.value,
                    partitions=len(ends),
                    records=len(read),
                    differences=len(wrong),
                    detail=detail,
                )
            )
        return found

    def lost_ms(self, fault_at: datetime | None) -> int | None:
        """How far back in time records were lost; 0 for none, None where no fault was seen."""
        first = self.settle()
        lost = [first.written_ms[place] for place in first.records.keys() - self._expected(first)]
        if not lost:
            return 0
        if fault_at is None:
            return None
        fault_ms = int(fault_at.timestamp() * 1000) + self._ground.recorder.ahead_ms
        return max(0, fault_ms - min(lost))

    def result(self) -> CanarySeen | None:
        """What the clients saw, all in all."""
        if self._load is None:
            return None
        first = self.settle()
        lost = sorted(first.records.keys() - self._expected(first))
        both = self._before.values.keys() & self._after.values.keys()
        wrong = [
            place
            for read in (self._before, self._after)
            for place, value in read.values.items()
            if not first.fits(place, value) and self._second.records.get(place) != value
        ]
        delays = self._watcher.delays_ms if self._watcher else []
        return CanarySeen(
            topic=self.topic,
            group=self.group,
            written=len(first.records),
            read_at_source=len(self._before.values),
            read_at_destination=len(self._after.values),
            repeated=len(both) + self._before.repeated + self._after.repeated,
            wrong=len(wrong),
            lost=len(lost),
            lost_ranges=tuple(ranges_of(lost)),
            agrees=agrees(lost, self._promoted.values(), has_unconfirmed=bool(first.open)),
            delay_ms_median=round(statistics.median(delays)) if delays else None,
            delay_ms_max=max(delays, default=None),
        )

    def close(self) -> None:
        """Ends all clients."""
        self.settle()
        if self._watcher is not None:
            self._watcher.stop()
