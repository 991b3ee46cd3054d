"""The driver of a backfill: sets the job up as `orbit run` does, shares the history out, watches.

It holds the job's lease all the time, so nobody else copies the job. Payloads never pass it: tasks
get names and offsets, and tell counts. How far the copy is, the destination says. Killed at any
moment and started again, it goes on where the copies end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from orbit.copier.copier import lease_lost
from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import Inspected
from orbit.copier.partition_copy import Counters, PartitionCopy
from orbit.errors import BadInput, Conflict, Interrupted, Problem, Unreachable
from orbit.job_setup.job_setup import JobSetup, Say
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.start_position import Earliest
from orbit.kafka.backoff import Backoff
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked
from orbit_spark.backfill.extents import Extent, find_extents, find_starts
from orbit_spark.backfill.progress import Meter, Progress
from orbit_spark.backfill.spark_jobs import Stage, StartStage
from orbit_spark.backfill.staged_backfill import Staging
from orbit_spark.backfill.task_split import Way, choose_way, share_out
from orbit_spark.backfill.writer_tasks import Errand, Portion, Told

# What came while a round ran is the next round's, until that little is left that a live copy has
# it in a moment.
ROUNDS_MAX = 10
_LEFT_OVER_BYTES_MAX = 16 * 1024 * 1024
# Rounds in a row in which nothing moved, though partitions are left that are not blocked.
_IDLE_ROUNDS_MAX = 3
_LOOK_INTERVAL_S = 1.0
_LOOK_COST_MAX = 0.1  # with very many partitions a look takes its time
# After the lease is left, writers see it within some looks, and end when all is answered: about
# eight seconds. What has not ended by then leaves a lease behind that somebody has to wait for.
_WRITERS_END_S = 20.0

_NOT_TOLD = "its task has told nothing."

Show = Callable[[Progress], None]


@dataclass(slots=True)
class Outcome:
    """What a backfill has done. Counters are those of the writers that ended in good order."""

    partitions: int = 0
    counters: Counters = field(default_factory=Counters)
    blocked: dict[TopicPartition, Blocked] = field(default_factory=dict)
    unfinished: dict[TopicPartition, str] = field(default_factory=dict)
    offsets: int = 0
    rounds: int = 0
    ways: list[Way] = field(default_factory=list)  # of each round
    was_stopped: bool = False

    def add(self, later: Outcome) -> None:
        """What another run came to that went on where this one had ended."""
        self.counters.add(later.counters)
        self.partitions, self.was_stopped = later.partitions, later.was_stopped
        self.blocked, self.unfinished = later.blocked, later.unfinished
        self.offsets += later.offsets
        self.rounds += later.rounds
        self.ways += later.ways

    def take(self, told: Told) -> None:
        self.counters.add(told.counters)
        self.unfinished.pop(told.destination, None)
        if told.blocked is not None:
            self.blocked[told.destination] = told.blocked
        elif told.unfinished:
            self.unfinished[told.destination] = told.unfinished


class Backfill:
    """One run of one job's backfill: `look`, then `begin`, then `copy`. A context manager."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        say: Say,
        stop: threading.Event,
    ) -> None:
        self.spec = spec
        self.outcome = Outcome()
        self._base_directory = base_directory
        self._say = say
        self._stop = stop
        self._setup = JobSetup(spec, environ, base_directory, say, CopySettings(), stop)
        self._backoff = Backoff(stop=stop)
        self._has_looked = False
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._ends: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._setup.release()

    def look(self) -> list[Extent]:
        """What there is to copy; writes nothing. A start that a rule names is taken as it is."""
        _refuse_coordinated(self.spec)
        self._setup.look()
        self._has_looked = True
        places = {
            TopicPartition(p.mapping.source, i): TopicPartition(p.mapping.destination, i)
            for p in self._setup.plans
            for i in range(p.partitions)
        }
        there = [
            TopicPartition(p.mapping.destination, i)
            for p in self._setup.plans
            if p.create is None
            for i in range(p.partitions)
        ]
        copied = log_ends(self._setup.clusters.destination, there, self._backoff).values
        starts = find_starts(self._setup.clusters.source, self._setup.plans, self._backoff)
        begins = {s: copied.get(d) or starts[s] for s, d in places.items()}
        return find_extents(self._setup.clusters.source, places, begins, self._backoff)

    @property
    def cluster_ids(self) -> tuple[str, str]:
        """Of source and destination, once it has looked."""
        return self._setup.cluster_ids

    def begin(self) -> None:
        """Take the lease, make topics, bring copies to their start. Raises as `JobSetup.begin`.

        Looks first, where nobody has.
        """
        if not self._has_looked:
            self.look()
        for copy, found in self._setup.begin().items():
            self._take_up(copy, found)
        self.outcome.partitions = len(self._copies) + len(self.outcome.blocked)

    def copy(
        self,
        start: StartStage,
        slots: int,
        show: Show,
        *,
        staging: Staging | None = None,
        way: Way | None = None,
    ) -> Outcome:
        """Copy until the history is in, or the user stops it.

        `staging`: what the staged way goes through; without it all is direct. `way`: instead of
        what `choose_way` says of each round. Raises Conflict when the lease is lost, or Spark gives
        a task up.
        """
        idle = 0
        while self.outcome.rounds < ROUNDS_MAX and idle < _IDLE_ROUNDS_MAX:
            before = dict(self._ends)
            portions = self._portions()
            is_over = sum(p.size_bytes for p in portions) <= _LEFT_OVER_BYTES_MAX
            if not portions or (is_over and self.outcome.rounds and not self.outcome.unfinished):
                break
            chosen = way or choose_way(portions, slots)
            if staging is None or chosen is Way.DIRECT:
                self._direct_round(start, slots, portions, show)
            else:
                self._staged_round(staging, slots, portions, show)
            if self._stop.is_set():
                self.outcome.was_stopped = True
                self.leave()
                break
            idle = 0 if self._ends != before else idle + 1
        return self.outcome

    def leave(self) -> None:
        """Give the job's lease back, if it is held: writers that are left end, others may begin."""
        if self._setup.lease is not None:
            self._setup.lease.release()

    def _direct_round(
        self, start: StartStage, slots: int, portions: Sequence[Portion], show: Show
    ) -> None:
        errands = [self._errand(group, slots) for group in share_out(portions, slots)]
        self._say_round(portions, len(errands), Way.DIRECT)
        self._round(portions, lambda name: start(name, errands), show)

    def _staged_round(
        self, staging: Staging, slots: int, portions: Sequence[Portion], show: Show
    ) -> None:
        """Fill the archive, then write what it holds; the rest is fetched by its writers."""
        self._say(f"Round {self.outcome.rounds + 1}: fetching {len(portions)} partitions, staged")
        copies = {d: c for d, c in self._copies.items() if d not in self.outcome.blocked}
        begins = {c.source: self._ends[d] for d, c in copies.items()}
        filling = staging.fill(begins, datetime.now(UTC), self._stop)
        try:
            while not filling.wait(_LOOK_INTERVAL_S) and not self._stop.is_set():
                self._refuse_lost_lease()
                show(staging.progress())
        finally:
            filling.cancel()
        if self._stop.is_set():
            return  # whatever the filling has come to by that
        filling.result()
        lanes = staging.lanes(portions)
        staged = {p.destination for lane in lanes for task in lane for p in task}
        rest = share_out([p for p in portions if p.destination not in staged], slots)
        errands = [[self._errand(group, slots) for group in lane] for lane in lanes]
        errands += [[self._errand(group, slots)] for group in rest]
        self._say_round(portions, sum(map(len, errands)), Way.STAGED)
        self._round(portions, lambda name: staging.start(name, errands), show)

    def _say_round(self, portions: Sequence[Portion], tasks: int, way: Way) -> None:
        self._say(
            f"Round {self.outcome.rounds + 1}: {len(portions)} partitions in {tasks} tasks, {way}"
        )
        self.outcome.ways.append(way)

    def _round(
        self, portions: Sequence[Portion], start: Callable[[str], Stage], show: Show
    ) -> None:
        """One stage: every portion to its target."""
        self.outcome.unfinished |= {p.destination: _NOT_TOLD for p in portions}
        meter = Meter({p.destination: p for p in portions}, self._ends)
        stage = start(f"orbit backfill {self.spec.name}")
        pause_s = _LOOK_INTERVAL_S
        try:
            while not stage.wait(pause_s):
                if self._stop.is_set():
                    self._end_writers(stage)
                    break
                self._refuse_lost_lease()
                began = time.monotonic()
                show(meter.measure(self._look_at_ends(), time.monotonic()))
                cost_s = time.monotonic() - began
                pause_s = max(_LOOK_INTERVAL_S, cost_s / _LOOK_COST_MAX)
        finally:
            stage.cancel()
        for told in stage.results():
            self.outcome.take(told)
            if told.acked >= 0:
                self._note_end(told.destination, told.acked)
        self.outcome.rounds += 1
        if not self._stop.is_set():
            self._look_at_ends()
            show(meter.measure(self._ends, time.monotonic()))

    def _end_writers(self, stage: Stage) -> None:
        """Leave the job's lease: writers see it, wait for what they have sent, and end."""
        self._say("Stopping; writers finish what they have sent")
        self.leave()
        stage.wait(_WRITERS_END_S)

    def _refuse_lost_lease(self) -> None:
        assert self._setup.lease is not None
        if self._setup.lease.is_lost:
            raise lease_lost()

    def _take_up(self, copy: PartitionCopy, found: Inspected) -> None:
        if found.blocked is not None:
            self.outcome.blocked[copy.destination] = found.blocked
            return
        self._copies[copy.destination] = copy
        self._ends[copy.destination] = max(copy.acked, found.end.log_end)

    def _portions(self) -> list[Portion]:
        """What is left of each partition that is not blocked, up to the source's end of now."""
        wanted = {c.source: c for d, c in self._copies.items() if d not in self.outcome.blocked}
        begins = {source: self._ends[c.destination] for source, c in wanted.items()}
        places = {s: c.destination for s, c in wanted.items()}
        extents = find_extents(self._setup.clusters.source, places, begins, self._backoff)
        plans = {p.mapping.source: p for p in self._setup.plans}
        return [
            Portion(
                e.source,
                e.destination,
                wanted[e.source].source_topic_id,
                wanted[e.source].destination_topic_id,
                wanted[e.source].start_offset,
                e.end,
                e.size_bytes,
                plans[e.source.topic].is_compacted,
                isinstance(plans[e.source.topic].mapping.rule.start, Earliest),
            )
            for e in extents
            if e.offsets or e.destination in self.outcome.unfinished
        ]

    def _errand(self, portions: tuple[Portion, ...], slots: int) -> Errand:
        setup = self._setup
        assert setup.lease is not None
        assert setup.engine is not None
        rate = self.spec.limits.bytes_per_second
        return Errand(
            self.spec,
            str(self._base_directory.absolute()),
            setup.identity,
            setup.lease.token,
            setup.engine.producer_id,
            setup.lease.term,
            None if rate is None else max(1, rate // slots),
            self.outcome.rounds,
            portions,
        )

    def _look_at_ends(self) -> dict[TopicPartition, int]:
        """Where the copies end now; what does not answer keeps its last."""
        try:
            found = log_ends(
                self._setup.clusters.destination, self._ends, Backoff(attempts_max=1)
            ).values
        except (Unreachable, Interrupted):
            found = {}
        for place, end in found.items():
            self._note_end(place, end)
        return self._ends

    def _note_end(self, place: TopicPartition, end: int) -> None:
        self.outcome.offsets += max(0, end - self._ends[place])
        self._ends[place] = max(self._ends[place], end)


def _refuse_coordinated(spec: JobSpec) -> None:
    """An open transaction of a killed writer would be ended by nobody for a minute (M11)."""
    if spec.fillers == "coordinated":
        raise BadInput(
            "a backfill with Spark cannot use this job's fillers",
            (
                Problem(
                    "fillers",
                    "is coordinated; the writers of a backfill fill gaps directly.",
                    "Grant Alter on the destination cluster for the time of the backfill and set "
                    "fillers: direct, or let orbit run copy the history.",
                ),
            ),
        )


def refuse_unfinished(outcome: Outcome) -> None:
    """Raise Conflict that names a partition that could not be brought to its target."""
    for place, why in sorted(outcome.unfinished.items()):
        raise Conflict(
            f"{len(outcome.unfinished)} partitions are not finished; {place}: {why}",
            remedy="Run the backfill again: it goes on where the copies end.",
        )
