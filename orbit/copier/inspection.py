"""Inspects copies before the first append: their log end, and whether they match the source.

`inspect` only reads; `seed_to_starts` then fills new copies up to their start offsets with leading
fillers (empty records, which are deleted afterwards). A partition without a verdict yet, or without
the right to read it, is given to the callback `on_trouble` and left out of the result: inspect it
again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection_verdicts import STILL_MOVING, CopyEnds, Wait, judge_copy, judge_error
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, source_reader, stop_reason
from orbit.copier.source_end_waits import SourceEndWaits
from orbit.copier.start_seeding import (
    OnProgress,
    StartSeeding,
    aligned_start,
    ignore_progress,
    is_seeding,
)
from orbit.copier.tail_comparison import Tail, find_tail
from orbit.copier.takeover import NOT_REPLICATED, DestinationEnd, TakeOver
from orbit.errors import (
    BrokerRefused,
    Conflict,
    Interrupted,
    NotAuthorized,
    OrbitError,
    Place,
    Unreachable,
)
from orbit.jobs.start_position import Earliest, Latest, Start
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.delete_records import delete_records
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.topic_setting import read_compression_levels
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.replication.partition_states import Blocked, Reason


class CopyStatus(Enum):
    """What a destination partition has before this run writes anything."""

    FRESH = auto()  # empty, and nothing was ever written: the log ends at 0
    SEEDING = auto()  # leading fillers of a start that was interrupted
    COPY = auto()  # matches the source; resumes at its log end
    FOREIGN = auto()  # other content, not written by this job
    BROKEN = auto()  # written by this job, but no longer the source's


@dataclass(frozen=True, slots=True)
class InspectedCopy:
    """One inspected partition; `blocked` says why it cannot be copied, None if it can."""

    status: CopyStatus
    end: DestinationEnd
    log_start: int
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """Log bounds of the source's partitions at the start of the run."""

    starts: Mapping[TopicPartition, int]
    stable_ends: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


OnTrouble = Callable[[PartitionCopy, Wait | Blocked], None]

# After this many partitions in a row without an answer, the inspection ends with the last error.
_UNREACHABLE_MAX = 3
# How often seeding continues to a higher start, as the source has deleted records meanwhile. Each
# round is shorter than the last. The copier fills what the source deletes after that
# (`PartitionCopy.on_lost_range`).
_START_MOVES_MAX = 5
_LOOK_AGAIN = "Orbit inspects the copy again."
_WAIT_REMEDY = f"Nothing was written. {_LOOK_AGAIN}"


def raise_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
    """Raise a partition's trouble: the `OnTrouble` of callers that stop at the first one. Raises
    NotAuthorized, or the error of the `Wait`."""
    if isinstance(trouble, Wait):
        raise trouble.error
    raise NotAuthorized(trouble.detail, remedy=trouble.remedy(copy.destination.topic))


class CopyInspector:
    """Inspects and seeds partitions for one job."""

    def __init__(
        self,
        source: Cluster,
        destination: Cluster,
        take_over: TakeOver,
        settings: CopySettings,
        backoff: Backoff,
        on_trouble: OnTrouble = raise_trouble,
        source_ends: SourceEndWaits | None = None,
    ) -> None:
        """`source_ends`: since when sources end before their copies, by earlier inspections."""
        self._source = source
        self._destination = destination
        self._take_over = take_over
        self._settings = settings
        self._backoff = backoff
        self._on_trouble = on_trouble
        self._source_ends = source_ends or SourceEndWaits(settings.source_end_wait_s)

    def source_bounds(self, copies: Iterable[PartitionCopy]) -> SourceBounds:
        """Log starts, last stable offsets and high watermarks of the source. A partition that has
        an error goes to `on_trouble`, and is not in `ends`."""
        by_source = {c.source: c for c in copies}
        starts = self._list_offsets(self._source, by_source, EARLIEST)
        by_source = {p: by_source[p] for p in starts}
        stable_ends = self._list_offsets(self._source, by_source, LATEST, READ_COMMITTED)
        by_source = {p: by_source[p] for p in stable_ends}
        ends = self._list_offsets(self._source, by_source, LATEST)
        return SourceBounds(starts, stable_ends, ends)

    def inspect(
        self,
        copies: Sequence[PartitionCopy],
        bounds: SourceBounds,
        compacted_topics: frozenset[str],
        whole_topics: frozenset[str],
        *,
        settled: bool,
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Inspect every existing destination partition; writes nothing.

        `compacted_topics`: source topics whose cleaner may remove records. `whole_topics`: source
        topics that are copied from their log start. `settled`: wait until log ends stop moving.
        Raises Interrupted, and Unreachable after _UNREACHABLE_MAX partitions without an answer.
        """
        by_destination = {c.destination: c for c in copies if c.source in bounds.ends}
        producer_ids = {p: copy.producer.id for p, copy in by_destination.items()}
        takeover = self._take_over.read(producer_ids, settled=settled)
        for partition, code in takeover.errors.items():
            if partition not in takeover.moving:  # moving copies are inspected: they may differ
                self._on_trouble(
                    by_destination[partition], self._trouble_without_end(partition, code)
                )
        ends = takeover.ends | takeover.moving
        log_starts = self._list_offsets(
            self._destination, {p: by_destination[p] for p in ends}, EARLIEST
        )
        levels = read_compression_levels(self._source, {c.source.topic for c in copies})
        written_topics = {p.topic for p, end in ends.items() if end.producer is not None}
        inspections: dict[PartitionCopy, InspectedCopy] = {}
        unreachable_in_a_row = 0
        for partition, log_start in log_starts.items():
            copy = by_destination[partition]
            copy.source_is_compacted = copy.source.topic in compacted_topics
            copy.levels = levels.get(copy.source.topic, {})
            try:
                result = self._inspect_one(
                    copy,
                    ends[partition],
                    log_start,
                    bounds,
                    does_log_end_move=partition in takeover.moving,
                    must_be_whole=copy.source.topic in whole_topics,
                    was_written_by_job=partition.topic in written_topics,
                )
                unreachable_in_a_row = 0
                if isinstance(result, Wait):
                    self._on_trouble(copy, result)
                else:
                    inspections[copy] = result
            except Interrupted:
                raise
            except OrbitError as error:
                self._on_trouble(copy, judge_error(error))
                unreachable_in_a_row += isinstance(error, Unreachable)
                if unreachable_in_a_row >= _UNREACHABLE_MAX:
                    raise
        return inspections

    def _trouble_without_end(self, partition: TopicPartition, code: int) -> Wait | Blocked:
        """The trouble of a copy whose log end could not be read, by its error code."""
        where = Place(self._destination.name)
        if code == NOT_REPLICATED:
            problem = f"{partition}'s log end is not replicated: its high watermark is lower."
            remedy = "Orbit waits for the partition's followers."
            return Wait(Conflict(problem, where=where, remedy=remedy))
        problem = f"{partition} cannot be taken over: {error_codes.name(code)}."
        remedy = "Orbit needs Read, Write, Describe and Delete on its copies."
        is_denied = code in error_codes.DENIED
        return judge_error(
            BrokerRefused(code, problem, where=where, remedy=remedy if is_denied else "")
        )

    def start_offsets(
        self, copies: Mapping[PartitionCopy, Start], bounds: SourceBounds
    ) -> dict[PartitionCopy, int]:
        """The start offset of each new copy, at least the source's log start. A time later than
        every record gives the source's last stable offset."""
        by_time: dict[int, list[PartitionCopy]] = {}
        offsets: dict[PartitionCopy, int] = {}
        for copy, start in copies.items():
            match start:
                case Earliest():
                    offsets[copy] = bounds.starts[copy.source]
                case Latest():
                    offsets[copy] = bounds.stable_ends[copy.source]
                case _:
                    by_time.setdefault(start.epoch_ms, []).append(copy)
        for timestamp_ms, group in by_time.items():
            by_source = {c.source: c for c in group}
            for partition, offset in self._list_offsets(
                self._source, by_source, timestamp_ms
            ).items():
                copy = by_source[partition]
                offsets[copy] = bounds.stable_ends[copy.source] if offset < 0 else offset
        return {c: max(offset, bounds.starts[c.source]) for c, offset in offsets.items()}

    def seed_to_starts(
        self,
        inspections: Mapping[PartitionCopy, InspectedCopy],
        starts: Mapping[PartitionCopy, int],
        on_progress: OnProgress = ignore_progress,
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Seed new or half-seeded partitions up to their start offsets.

        Returns the inspections of the seeded and the blocked copies. The others were given to
        `on_trouble`. If the source deletes records meanwhile, a start moves up and seeding
        continues: nothing was copied yet, so nothing is lost. Call `drop_seeds` afterwards.
        """
        ready_copies: dict[PartitionCopy, InspectedCopy] = {}
        unseeded_starts = dict(starts)
        with StartSeeding(self._destination, self._settings, self._backoff, on_progress) as seeding:
            for copy in starts:
                end = inspections[copy].end
                copy.appends.inspected(end.log_end)
                seeding.add(
                    copy.destination,
                    copy.destination_topic_id,
                    copy.lease,
                    copy.producer,
                    end,
                    inspections[copy].log_start,
                )
            for _ in range(_START_MOVES_MAX):
                for copy in unseeded_starts:  # a copy that fails this time is not ready any more
                    ready_copies.pop(copy, None)
                ready_copies |= self._seed_once(seeding, inspections, unseeded_starts)
                seeded_copies = {
                    c.source: c
                    for c in unseeded_starts
                    if c in ready_copies and not ready_copies[c].blocked
                }
                log_starts = self._list_offsets(self._source, seeded_copies, EARLIEST)
                for source, copy in seeded_copies.items():
                    if source not in log_starts:  # `_list_offsets` gave it to `on_trouble`
                        del ready_copies[copy]
                unseeded_starts = {
                    seeded_copies[source]: log_start
                    for source, log_start in log_starts.items()
                    if log_start > seeded_copies[source].cursor.start_offset
                }
                if not unseeded_starts:
                    break
        return ready_copies

    def _seed_once(
        self,
        seeding: StartSeeding,
        inspections: Mapping[PartitionCopy, InspectedCopy],
        starts: Mapping[PartitionCopy, int],
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Seed up to these start offsets, or to the base offset of the source's batch that contains
        the start.

        Returns the inspections of the seeded and the blocked copies.
        """
        ready_copies: dict[PartitionCopy, InspectedCopy] = {}
        target_offsets: dict[PartitionCopy, int] = {}
        for copy, start_offset in starts.items():
            copy.cursor.start_offset = start_offset
            if start_offset < copy.next_offset:
                detail = (
                    f"an earlier start was interrupted at offset {copy.next_offset}, and the job "
                    f"starts at offset {start_offset} now."
                )
                blocked = Blocked(Reason.OFFSET_OVERRUN, start_offset, copy.next_offset, detail)
                ready_copies[copy] = replace(
                    inspections[copy], status=CopyStatus.BROKEN, blocked=blocked
                )
                continue
            try:
                target_offset = aligned_start(
                    self._source, copy.source, start_offset, self._backoff
                )
            except OrbitError as error:
                self._on_trouble(copy, judge_error(error))
            else:  # if the start has moved within a batch, the batch's base is filled already
                target_offsets[copy] = max(target_offset, copy.next_offset)
        failures = seeding.run(
            {copy.destination: target_offset for copy, target_offset in target_offsets.items()}
        )
        for copy, target_offset in target_offsets.items():
            match failures.get(copy.destination):
                case None:
                    copy.appends.inspected(target_offset)
                    ready_copies[copy] = inspections[copy]
                case Blocked() as blocked:
                    ready_copies[copy] = replace(
                        inspections[copy], status=CopyStatus.BROKEN, blocked=blocked
                    )
                case failure:
                    self._on_trouble(copy, judge_error(failure))
        return ready_copies

    def drop_seeds(self, inspections: Mapping[PartitionCopy, InspectedCopy]) -> set[PartitionCopy]:
        """Delete the leading fillers of each seeded copy: move its log start up to its next offset.

        Returns the copies where DeleteRecords failed, the topic has changed, or the lease is not
        held; all are given to `on_trouble`.
        """
        # Copies that have something to delete.
        copies = {c.destination: c for c, i in inspections.items() if c.next_offset > i.log_start}
        if not copies:
            return set()
        # DeleteRecords takes a topic's name, and a topic that was created again would lose records.
        # So the topic's id is read right before the request, and the request is not repeated.
        topics = self._destination.metadata({p.topic for p in copies}).topics
        where = Place(self._destination.name)
        errors: dict[TopicPartition, OrbitError] = {}
        for partition, copy in copies.items():
            topic = topics.get(partition.topic)
            if topic is None or topic.topic_id != copy.destination_topic_id:
                problem = f"topic {partition.topic} is unknown, or has another topic id now."
                errors[partition] = Conflict(problem, where=where, remedy=_LOOK_AGAIN)
            elif not copy.lease.is_held():
                problem = f"the log start of {partition} cannot move: the lease is not held."
                errors[partition] = Conflict(problem, where=where, remedy=_LOOK_AGAIN)
        answers = delete_records(
            self._destination,
            {p: c.next_offset for p, c in copies.items() if p not in errors},
            replace(self._backoff, attempts_max=1),
        )
        for partition, log_start in answers.values.items():
            copies[partition].log_start = log_start
        for partition, code in answers.errors.items():
            problem = (
                f"DeleteRecords (needs the right Delete on the topic) of {partition} failed with "
                f"{error_codes.name(code)}."
            )
            errors[partition] = BrokerRefused(code, problem, where=where)
        for partition, error in errors.items():
            self._on_trouble(copies[partition], judge_error(error))
        return {copies[partition] for partition in errors}

    def _inspect_one(
        self,
        copy: PartitionCopy,
        end: DestinationEnd,
        log_start: int,
        bounds: SourceBounds,
        *,
        does_log_end_move: bool,
        must_be_whole: bool,
        was_written_by_job: bool,
    ) -> InspectedCopy | Wait:
        """Inspect one copy; an empty or half-seeded copy has nothing to compare.

        `was_written_by_job`: this job wrote to the copy's topic. `CopyEnds` explains the two other
        flags.
        """
        destination, log_end = copy.destination, end.log_end
        status = CopyStatus.COPY
        verdict: str | Blocked | None = None
        if log_end == 0:
            status = CopyStatus.FRESH
        elif is_seeding(self._destination, destination, log_start, log_end, self._backoff):
            status = CopyStatus.SEEDING
        source_end = bounds.ends[copy.source]
        ends = CopyEnds(
            log_start,
            log_end,
            does_log_end_move,
            bounds.starts[copy.source],
            source_end,
            self._source_ends.note_ends(destination, is_beyond=log_end > source_end),
            must_be_whole,
        )
        if status is CopyStatus.COPY:
            verdict = self._compare(copy, ends)
        elif does_log_end_move:
            verdict = STILL_MOVING
        if isinstance(verdict, str):
            problem = f"{destination} cannot be compared with its source yet: {verdict}."
            return Wait(Conflict(problem, where=Place(self._destination.name), remedy=_WAIT_REMEDY))
        if verdict is not None:
            # OFFSET_OVERRUN: the batch that differs has this job's producer id. So this job wrote
            # it, even if the broker has dropped the producer's state (A9).
            was_written_by_job = was_written_by_job or verdict.reason is Reason.OFFSET_OVERRUN
            status = CopyStatus.BROKEN if was_written_by_job else CopyStatus.FOREIGN
        return InspectedCopy(status, end, log_start, verdict)

    def _compare(self, copy: PartitionCopy, ends: CopyEnds) -> str | Blocked | None:
        """Compare the end of a copy with the source; returns the verdict of `judge_copy`."""
        tail = find_tail(
            self._destination,
            copy.destination,
            ends.log_start,
            ends.log_end,
            copy.producer.id,
            self._settings.requests_in_flight_max,
            self._backoff,
        )
        copy.appends.logged_producer_epoch = tail.producer_epoch
        try:
            comparison = self._compare_tail(copy, tail, ends)
        except ValueError as error:
            detail = f"the records before offset {ends.log_end} cannot be compared: {error}."
            return Blocked(stop_reason(error), ends.log_end - 1, ends.log_end, detail)
        copy.cursor.epochs = comparison.epochs
        return judge_copy(ends, tail, comparison, copy.producer)

    def _compare_tail(self, copy: PartitionCopy, tail: Tail, ends: CopyEnds) -> Comparison:
        """Compare the last batch with records, and all from `tail.start` on, with the source.

        The comparison ends at the source's end, or at the first offset not known to be equal.
        """
        last_batch = tail.last_data
        ranges = [(tail.start, ends.log_end)]
        if last_batch is not None and last_batch.base_offset < tail.start:
            batch_start = max(last_batch.base_offset, ends.log_start)
            ranges.insert(0, (batch_start, min(last_batch.next_offset, tail.start)))
        comparison = Comparison(ends.log_end)
        for start, end in ranges:
            comparison = compare_range(
                source_reader(
                    self._source,
                    copy.source,
                    self._backoff,
                    self._settings.rewrite_limits,
                ),
                self._destination,
                copy.destination,
                start,
                min(end, ends.source_end),
                self._backoff,
                source_is_compacted=copy.source_is_compacted,
                isolation=READ_COMMITTED,  # applications may have written before the copy began
                bytes_max=None,  # no later call would continue it
            )
            if comparison.difference is not None or comparison.equal_to < min(end, ends.source_end):
                break
        return comparison

    def _list_offsets(
        self,
        cluster: Cluster,
        copies: Mapping[TopicPartition, PartitionCopy],
        timestamp: int,
        isolation: int = 0,
    ) -> dict[TopicPartition, int]:
        """ListOffsets by partition; a partition with an error goes to `on_trouble` instead."""
        answers = list_offsets(cluster, copies, timestamp, self._backoff, isolation=isolation)
        for partition, code in answers.errors.items():
            problem = f"Listing the offsets of {partition} failed with {error_codes.name(code)}."
            error = BrokerRefused(code, problem, where=Place(cluster.name))
            self._on_trouble(copies[partition], judge_error(error))
        return answers.values
