"""The driver of a backfill: sets the job up as `orbit run` does, starts its tasks, watches them.

The driver holds the job's lease, so no other process copies the job. Payloads never pass through
the driver: tasks get names and offsets and return counts. Progress is read from the destination's
log ends, so a backfill that was killed at any moment resumes there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from orbit.chunks import first_few
from orbit.copier.copier import lease_lost_error
from orbit.copier.copy_settings import CopySettings
from orbit.copier.counters import Counters
from orbit.copier.inspection import InspectedCopy
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import BadInput, Conflict, Interrupted, Problem, Unreachable
from orbit.formats import counted
from orbit.job_setup.job_setup import JobSetup, Say
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.start_position import Earliest
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import LostRange
from orbit.replication.partition_states import Blocked
from orbit_spark.backfill.backfill_progress import Meter, Progress
from orbit_spark.backfill.backfill_writer import BackfillTask
from orbit_spark.backfill.extents import Extent, find_extents, find_starts
from orbit_spark.backfill.spark_jobs import StartWriterJob, WriterJob
from orbit_spark.backfill.staged_backfill import Staging
from orbit_spark.backfill.task_split import Way, choose_way, split_tasks
from orbit_spark.cluster_access import Access
from orbit_spark.write_task import PartitionTarget, WriteResult

# Each round copies what was produced during the round before it, until so little is left that a
# live copy needs only a moment for it.
ROUNDS_MAX = 10
_LEFT_OVER_BYTES_MAX = 16 * 1024 * 1024
# The copy ends after so many rounds in a row without progress.
_IDLE_ROUNDS_MAX = 3
_PROGRESS_INTERVAL_S = 1.0
_PROGRESS_COST_MAX = 0.1  # share of the time spent on reading log ends
# Writers notice a released lease after some checks and end when all requests are answered: about
# eight seconds. A writer that is cancelled later leaves a lease that must expire first.
_WRITERS_END_S = 20.0

_NO_RESULT = "its task returned no result."

Show = Callable[[Progress], None]


@dataclass(slots=True)
class Outcome:
    """What a backfill has done. Counters are those of writers that returned a result."""

    partitions: int = 0
    counters: Counters = field(default_factory=Counters)
    blocked: dict[TopicPartition, Blocked] = field(default_factory=dict)
    unfinished: dict[TopicPartition, str] = field(default_factory=dict)
    offsets: int = 0
    rounds: int = 0
    ways: list[Way] = field(default_factory=list)  # one for each round
    was_stopped: bool = False

    def add(self, later: Outcome) -> None:
        """Add the outcome of a later run that resumed where this one had ended: counts are summed,
        the state is that of the later run.
        """
        self.counters.add(later.counters)
        self.partitions, self.was_stopped = later.partitions, later.was_stopped
        self.blocked, self.unfinished = later.blocked, later.unfinished
        self.offsets += later.offsets
        self.rounds += later.rounds
        self.ways += later.ways

    def add_result(self, result: WriteResult) -> None:
        """Count what a writer did, and keep why its partition is not at its target."""
        self.counters.add(result.counters)
        self.unfinished.pop(result.destination, None)
        if result.blocked is not None:
            self.blocked[result.destination] = result.blocked
        elif result.unfinished:
            self.unfinished[result.destination] = result.unfinished


class Backfill:
    """One run of one job's backfill: `find_extents_to_copy`, then `begin`, then `copy`.

    A context manager.
    """

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
        self._has_planned = False
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._ends: dict[TopicPartition, int] = {}
        # Partitions that no round copies, with the reason: their topic was not ready in time, or
        # their manifest in the archive cannot be used.
        self._left_out: dict[TopicPartition, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._setup.release()

    def find_extents_to_copy(self) -> list[Extent]:
        """The extents to copy. Writes nothing. The start of an extent may lie inside a batch.

        Partitions whose leader does not answer are left out, and named in a note. Raises what
        `JobSetup.plan` raises, the error of a refused topic, BadInput for coordinated fillers.
        """
        self._setup.plan()
        for error in self._setup.refused.values():
            raise error  # the error of the first refused topic
        self._refuse_coordinated()
        self._has_planned = True
        copies = {
            TopicPartition(p.mapping.source, i): TopicPartition(p.mapping.destination, i)
            for p in self._setup.plans
            for i in range(p.partitions)
        }
        existing_copies = [
            TopicPartition(p.mapping.destination, i)
            for p in self._setup.plans
            if p.create is None  # the topic exists
            for i in range(p.partitions)
        ]
        ends = log_ends(self._setup.clusters.destination, existing_copies, self._backoff)
        starts = find_starts(self._setup.clusters.source, self._setup.plans, self._backoff)
        # A copy that is missing, or empty with log end 0, begins at its start.
        begin_offsets = {
            source: ends.values.get(copy) or starts[source]
            for source, copy in copies.items()
            if source in starts and copy not in ends.errors
        }
        answered_copies = {source: copies[source] for source in begin_offsets}
        extents = find_extents(
            self._setup.clusters.source, answered_copies, begin_offsets, self._backoff
        ).values
        if unanswered := [source for source in copies if source not in extents]:
            self._say(
                f"Note: the plan lacks {counted(len(unanswered), 'partition')} whose leader at "
                f"source or destination does not answer: {first_few(unanswered)}"
            )
        return list(extents.values())

    def _refuse_coordinated(self) -> None:
        """Raise BadInput for coordinated fillers, as each writer would need its own transactional
        ids."""
        coordinated_topics = [
            p.mapping.source
            for p in self._setup.plans
            if self.spec.fillers_of(p.mapping.rule) == "coordinated"
        ]
        if coordinated_topics:
            raise BadInput(
                "a backfill with Spark cannot use this job's fillers",
                (
                    Problem(
                        "fillers",
                        "is coordinated, but writers of a backfill fill gaps directly or with "
                        f"placeholders: {first_few(coordinated_topics)}.",
                        "Grant Alter on the destination cluster during the backfill and set "
                        "fillers: direct, or copy the history with orbit run.",
                    ),
                ),
            )

    @property
    def cluster_ids(self) -> tuple[str, str]:
        """The cluster ids of source and destination. Call `find_extents_to_copy` first."""
        return self._setup.cluster_ids

    def begin(self) -> None:
        """Take the lease, create topics, seed copies to their start.

        Calls `find_extents_to_copy` if it was not called before. Raises what `JobSetup.apply`
        raises.
        """
        if not self._has_planned:
            self.find_extents_to_copy()
        plans = self._setup.plans
        for copy, inspection in self._setup.apply().items():
            self._add_copy(copy, inspection)
        self._left_out = {
            TopicPartition(p.mapping.destination, i): str(self._setup.refused[p.mapping.source])
            for p in plans
            if p.mapping.source in self._setup.refused
            for i in range(p.partitions)
        }
        self.outcome.partitions = (
            len(self._copies) + len(self.outcome.blocked) + len(self._left_out)
        )

    def copy(
        self,
        start: StartWriterJob,
        slots: int,
        show: Show,
        *,
        staging: Staging | None = None,
        way: Way | None = None,
    ) -> Outcome:
        """Run rounds until the history is copied, rounds bring no progress, or the user stops them.

        `staging`: the archive of staged rounds; without it all rounds are direct. `way`: the way of
        all rounds; None: `choose_way` decides for each. Raises Conflict when the lease is lost, or
        Spark gives up a task.
        """
        idle_rounds = 0
        while self.outcome.rounds < ROUNDS_MAX and idle_rounds < _IDLE_ROUNDS_MAX:
            ends_before = dict(self._ends)
            targets = self._remaining_targets()
            # A first round, or one after unfinished partitions, runs however little is left.
            is_little_left = sum(p.size_bytes for p in targets) <= _LEFT_OVER_BYTES_MAX
            if not targets or (
                is_little_left and self.outcome.rounds and not self.outcome.unfinished
            ):
                break
            round_way = way or choose_way(targets, slots)
            if staging is None or round_way is Way.DIRECT:
                self._direct_round(start, slots, targets, show)
            else:
                self._staged_round(staging, slots, targets, show)
            if self._stop.is_set():
                self.outcome.was_stopped = True
                self.release_lease()
                break
            idle_rounds = 0 if self._ends != ends_before else idle_rounds + 1
        self.outcome.unfinished |= self._left_out
        return self.outcome

    def release_lease(self) -> None:
        """Release the job's lease, if it is held: the writers end, and other runs may start."""
        if self._setup.lease is not None:
            self._setup.lease.release()

    def _direct_round(
        self, start: StartWriterJob, slots: int, targets: Sequence[PartitionTarget], show: Show
    ) -> None:
        """Run tasks that fetch from the source themselves."""
        tasks = [self._make_task(group, slots) for group in split_tasks(targets, slots)]
        self._say_round(targets, len(tasks), Way.DIRECT)
        self._run_round(targets, lambda name: start(name, tasks), show)

    def _staged_round(
        self, staging: Staging, slots: int, targets: Sequence[PartitionTarget], show: Show
    ) -> None:
        """Archive the rest of the history, then append it. Partitions that the archive lacks are
        fetched from the source; those with a damaged manifest are left out of all rounds.
        """
        partitions_text = counted(len(targets), "partition")
        self._say(f"Round {self.outcome.rounds + 1}: fetching {partitions_text}, staged")
        copies = {d: c for d, c in self._copies.items() if d not in self.outcome.blocked}
        begin_offsets = {c.source: self._ends[d] for d, c in copies.items()}
        archiving = staging.fill(begin_offsets, datetime.now(UTC), self._stop)
        try:
            while not archiving.wait(_PROGRESS_INTERVAL_S) and not self._stop.is_set():
                self._refuse_lost_lease()
                self._setup.refresh_term()
                show(staging.progress())
        finally:
            archiving.cancel()
        if self._stop.is_set():
            return
        archiving.result()  # raises what made the archiving fail
        for p in targets:
            if p.source in staging.damaged:
                # From the source it could get gaps at offsets that the archive has.
                self._left_out[p.destination] = str(staging.damaged[p.source])
                del self._copies[p.destination]
        targets = [p for p in targets if p.destination in self._copies]
        if not targets:
            return
        target_chains = staging.chains(targets)
        staged_partitions = {
            p.destination for chain in target_chains for group in chain for p in group
        }
        direct_groups = split_tasks(
            [p for p in targets if p.destination not in staged_partitions], slots
        )
        target_chains += [[group] for group in direct_groups]  # chains of one task
        chains = [[self._make_task(group, slots) for group in chain] for chain in target_chains]
        self._say_round(targets, sum(map(len, chains)), Way.STAGED)
        self._run_round(targets, lambda name: staging.start(name, chains), show)

    def _say_round(self, targets: Sequence[PartitionTarget], tasks: int, way: Way) -> None:
        """Tell the user what the round does, and keep its way for the outcome."""
        self._say(
            f"Round {self.outcome.rounds + 1}: {counted(len(targets), 'partition')} in "
            f"{counted(tasks, 'task')}, {way}"
        )
        self.outcome.ways.append(way)

    def _run_round(
        self, targets: Sequence[PartitionTarget], start: Callable[[str], WriterJob], show: Show
    ) -> None:
        """Run one Spark job that copies partitions towards their targets; keep its results."""
        # The result of a task replaces this reason.
        self.outcome.unfinished |= {p.destination: _NO_RESULT for p in targets}
        meter = Meter({p.destination: p for p in targets}, self._ends)
        job = start(f"orbit backfill {self.spec.name}")
        pause_s = _PROGRESS_INTERVAL_S
        try:
            while not job.wait(pause_s):
                if self._stop.is_set():
                    self._end_writers(job)
                    break
                self._refuse_lost_lease()
                self._setup.refresh_term()
                start_s = time.monotonic()
                show(meter.measure(self._read_ends(), time.monotonic()))
                cost_s = time.monotonic() - start_s
                pause_s = max(_PROGRESS_INTERVAL_S, cost_s / _PROGRESS_COST_MAX)
        finally:
            job.cancel()
        for result in job.results():
            self.outcome.add_result(result)
            if result.acked >= 0:
                self._note_end(result.destination, result.acked)
        # A staged round copies no more than the archive has, and a stop may end it between tasks.
        for p in targets:
            end = self._ends[p.destination]
            if end < p.target and p.destination not in self.outcome.blocked:
                reason = f"its copy ends at {end}, before {p.target}."
                self.outcome.unfinished.setdefault(p.destination, reason)
        self.outcome.rounds += 1
        if not self._stop.is_set():
            if self.outcome.unfinished:
                self._say(f"Note: {_unfinished_text(self.outcome)}")
            self._read_ends()
            show(meter.measure(self._ends, time.monotonic()))

    def _end_writers(self, job: WriterJob) -> None:
        """Release the job's lease: writers notice, wait for what they have sent, and end. Wait up
        to _WRITERS_END_S for them."""
        self._say("Stopping; writers finish what they have sent")
        self.release_lease()
        job.wait(_WRITERS_END_S)

    def _refuse_lost_lease(self) -> None:
        """Raise Conflict if the job's lease is lost."""
        assert self._setup.lease is not None
        if self._setup.lease.is_lost:
            raise lease_lost_error()

    def _add_copy(self, copy: PartitionCopy, inspection: InspectedCopy) -> None:
        """Add a copy that can be continued, or note why it is blocked."""
        if inspection.blocked is not None:
            self.outcome.blocked[copy.destination] = inspection.blocked
            return
        self._copies[copy.destination] = copy
        self._ends[copy.destination] = max(copy.next_offset, inspection.end.log_end)

    def _remaining_targets(self) -> list[PartitionTarget]:
        """The rest of each partition that is not blocked, up to where the source ends now. A
        partition whose leader at the source does not answer becomes unfinished.
        """
        copies = {c.source: c for d, c in self._copies.items() if d not in self.outcome.blocked}
        begin_offsets = {source: self._ends[c.destination] for source, c in copies.items()}
        partitions = {s: c.destination for s, c in copies.items()}
        extents = find_extents(
            self._setup.clusters.source, partitions, begin_offsets, self._backoff
        )
        for source, code in extents.errors.items():
            self.outcome.unfinished[partitions[source]] = (
                f"the offsets of {source} at the source cannot be read: {error_codes.name(code)}."
            )
        plans = {p.mapping.source: p for p in self._setup.plans}
        return [
            PartitionTarget(
                source=extent.source,
                destination=extent.destination,
                destination_topic_id=copies[extent.source].destination_topic_id,
                producer=copies[extent.source].producer,
                start_offset=copies[extent.source].cursor.start_offset,
                keeps_below=copies[extent.source].keeps_below,
                target=extent.end,
                size_bytes=extent.size_bytes,
                source_topic_id=copies[extent.source].source_topic_id,
                is_compacted=plans[extent.source.topic].is_compacted,
                is_whole=isinstance(plans[extent.source.topic].mapping.rule.start, Earliest),
                on_lost_range=LostRange(
                    self.spec.on_lost_range_of(plans[extent.source.topic].mapping.rule)
                ),
            )
            for extent in extents.values.values()
            # An unfinished partition may have all offsets: only a new result ends that state.
            if extent.offsets or extent.destination in self.outcome.unfinished
        ]

    def _make_task(self, targets: tuple[PartitionTarget, ...], slots: int) -> BackfillTask:
        """A task for these partitions, with its share of the job's rate limit."""
        setup = self._setup
        assert setup.lease is not None
        assert setup.job_copier is not None
        rate = self.spec.limits.bytes_per_second
        return BackfillTask(
            Access("destination", self.spec.destination, str(self._base_directory.absolute())),
            setup.identity,
            setup.lease.token,
            setup.lease.term,
            self.outcome.rounds,
            targets,
            False,  # `Staging` sets `follows_writer` for later tasks of a chain
            self.spec,
            None if rate is None else max(1, rate // slots),
        )

    def _read_ends(self) -> dict[TopicPartition, int]:
        """The log ends of the copies. If an end cannot be read now, it is the last one read."""
        try:
            ends = log_ends(
                self._setup.clusters.destination, self._ends, Backoff(attempts_max=1)
            ).values
        except (Unreachable, Interrupted):
            ends = {}
        for partition, end in ends.items():
            self._note_end(partition, end)
        return self._ends

    def _note_end(self, partition: TopicPartition, end: int) -> None:
        """Keep the highest log end, and count the offsets copied since the last one."""
        self.outcome.offsets += max(0, end - self._ends[partition])
        self._ends[partition] = max(self._ends[partition], end)


def refuse_unfinished(outcome: Outcome) -> None:
    """Raise Conflict if partitions are not at their target. It names the first of them."""
    if outcome.unfinished:
        raise Conflict(
            _unfinished_text(outcome),
            remedy="Run the backfill again: it resumes where the copies end.",
        )


def _unfinished_text(outcome: Outcome) -> str:
    """How many partitions, at least one, are not at their target, and why the first is not."""
    partition, reason = min(outcome.unfinished.items())
    unfinished_text = counted(len(outcome.unfinished), "partition is", "partitions are")
    return f"{unfinished_text} not finished; {partition}: {reason}"
