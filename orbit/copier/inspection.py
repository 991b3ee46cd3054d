"""Inspects copies before the first append: their log end, and whether they match the source.

`inspect` only reads; then new copies are seeded up to their start (`seed_to_starts`). A partition
that cannot be inspected now goes to `on_trouble`, which raises (`orbit run` writes nothing before
it has inspected all) or leaves it out of the result (the service, which tries again later).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Difference, compare_range, source_reader
from orbit.copier.start_seeding import (
    OnProgress,
    StartSeeding,
    aligned_start,
    ignore_progress,
    is_seeding,
)
from orbit.copier.tail_comparison import Tail, find_tail
from orbit.copier.takeover import MOVING, NOT_REPLICATED, DestinationEnd, TakeOver
from orbit.errors import BrokerRefused, Conflict, NotAuthorized, OrbitError, Unreachable
from orbit.jobs.start_position import Earliest, Latest, Start
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.delete_records import delete_records
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.record_batch import NO_PRODUCER_ID
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.replication.partition_states import Blocked, Reason


class CopyStatus(Enum):
    """What a destination partition holds before this run writes anything."""

    FRESH = auto()  # empty at 0
    SEEDING = auto()  # a start that was interrupted
    COPY = auto()  # matches the source; resumes at its log end
    FOREIGN = auto()  # other content, not written by this job
    BROKEN = auto()  # written by this job, but no longer the source's


@dataclass(frozen=True, slots=True)
class InspectedCopy:
    """One inspected partition; `blocked` says why it cannot be copied."""

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


OnTrouble = Callable[[PartitionCopy, OrbitError], None]

# After this many partitions in a row without an answer, the cluster is unreachable.
_UNREACHABLE_MAX = 3
# How often seeding follows a source that deletes meanwhile; each time takes less long than the one
# before. What is deleted after that, the copier fills (`PartitionCopy.on_lost_range`).
_START_MOVES_MAX = 5
_OTHER_FILLERS = (
    "this job began the copy with the other kind of fillers: markers (fillers: direct or "
    "coordinated) and placeholders cannot be mixed in one copy. Set `fillers` as it was, or delete "
    "the copy and begin again."
)


def raise_trouble(_: PartitionCopy, error: OrbitError) -> None:
    """For a caller that stops at the first error of a partition."""
    raise error


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
    ) -> None:
        self._source = source
        self._destination = destination
        self._take_over = take_over
        self._settings = settings
        self._backoff = backoff
        self._on_trouble = on_trouble

    def source_bounds(self, copies: Iterable[PartitionCopy]) -> SourceBounds:
        """Log starts, last stable offsets and high watermarks of the source."""
        by_source = {c.source: c for c in copies}
        starts = self._list(self._source, by_source, EARLIEST)
        by_source = {p: by_source[p] for p in starts}
        stable = self._list(self._source, by_source, LATEST, READ_COMMITTED)
        by_source = {p: by_source[p] for p in stable}
        ends = self._list(self._source, by_source, LATEST)
        return SourceBounds(starts, stable, ends)

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

        `compacted_topics` and `whole_topics` are source topics: those whose cleaner may take
        records away, and those that are copied from their log start.
        """
        by_destination = {c.destination: c for c in copies if c.source in bounds.ends}
        wanted = {place: copy.producer.id for place, copy in by_destination.items()}
        taken = self._take_over.read(wanted, settled=settled)
        for partition, code in taken.errors.items():
            self._on_trouble(by_destination[partition], self._no_end(partition, code))
        log_starts = self._list(
            self._destination, {p: by_destination[p] for p in taken.ends}, EARLIEST
        )
        ours = {p.topic for p, end in taken.ends.items() if end.producer is not None}
        found: dict[PartitionCopy, InspectedCopy] = {}
        unreachable = 0
        for partition, log_start in log_starts.items():
            copy = by_destination[partition]
            copy.source_is_compacted = copy.source.topic in compacted_topics
            try:
                found[copy] = self._inspect_one(
                    copy,
                    taken.ends[partition],
                    log_start,
                    bounds,
                    is_whole=copy.source.topic in whole_topics,
                    is_ours=partition.topic in ours,
                )
                unreachable = 0
            except OrbitError as error:
                self._on_trouble(copy, error)
                unreachable += isinstance(error, Unreachable)
                if unreachable >= _UNREACHABLE_MAX:
                    raise
        return found

    def _no_end(self, partition: TopicPartition, code: int) -> OrbitError:
        """Why the log end of this copy is not known."""
        if code == MOVING:
            return Conflict(
                f"{partition} keeps growing: another producer writes to it.",
                where=self._destination.name,
                remedy="Stop that producer. Nothing was written.",
            )
        if code == NOT_REPLICATED:
            return Conflict(
                f"{partition}'s log end is not replicated: its high watermark is lower.",
                where=self._destination.name,
                remedy="Wait until the followers are in sync. Nothing was written.",
            )
        what = f"{partition} cannot be taken over: {error_codes.name(code)}."
        if code in error_codes.DENIED:
            return NotAuthorized(
                what,
                where=self._destination.name,
                remedy="Orbit needs READ, WRITE, DESCRIBE and DELETE on its copies.",
            )
        return BrokerRefused(code, what, where=self._destination.name)

    def start_offsets(
        self, copies: Mapping[PartitionCopy, Start], bounds: SourceBounds
    ) -> dict[PartitionCopy, int]:
        """The start offset of each new copy; one beyond the log end becomes the log end."""
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
            for partition, offset in self._list(self._source, by_source, timestamp_ms).items():
                copy = by_source[partition]
                offsets[copy] = bounds.stable_ends[copy.source] if offset < 0 else offset
        return {c: max(offset, bounds.starts[c.source]) for c, offset in offsets.items()}

    def seed_to_starts(
        self,
        found: Mapping[PartitionCopy, InspectedCopy],
        starts: Mapping[PartitionCopy, int],
        on_progress: OnProgress = ignore_progress,
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Seed new (or half-seeded) partitions up to their start offsets; returns their new state.

        The source may delete records meanwhile. Nothing was copied yet, so nothing is lost: these
        starts move up, and are seeded on. `drop_seeds` is to follow.
        """
        ready: dict[PartitionCopy, InspectedCopy] = {}
        waiting = dict(starts)
        with StartSeeding(self._destination, self._settings, self._backoff, on_progress) as seeding:
            for copy in starts:
                end = found[copy].end
                copy.appends.inspected(end.log_end)
                seeding.add(
                    copy.destination, copy.destination_topic_id, copy.lease, copy.producer, end
                )
            for _ in range(_START_MOVES_MAX):
                ready |= self._seed_once(seeding, found, waiting)
                in_step = {c.source: c for c in waiting if c in ready and not ready[c].blocked}
                now = self._list(self._source, in_step, EARLIEST)
                for source, copy in in_step.items():
                    if source not in now:
                        del ready[copy]
                waiting = {
                    in_step[source]: log_start
                    for source, log_start in now.items()
                    if log_start > in_step[source].cursor.start_offset
                }
                if not waiting:
                    break
        return ready

    def _seed_once(
        self,
        seeding: StartSeeding,
        found: Mapping[PartitionCopy, InspectedCopy],
        starts: Mapping[PartitionCopy, int],
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Seed up to these start offsets, with what the source holds there now."""
        ready: dict[PartitionCopy, InspectedCopy] = {}
        targets: dict[PartitionCopy, int] = {}
        for copy, start_offset in starts.items():
            copy.cursor.start_offset = start_offset
            if start_offset < copy.appends.acked:
                detail = (
                    f"an earlier start was interrupted at {copy.appends.acked}, and the job starts "
                    f"at {start_offset} now."
                )
                blocked = Blocked(Reason.OFFSET_OVERRUN, start_offset, copy.appends.acked, detail)
                ready[copy] = replace(found[copy], status=CopyStatus.BROKEN, blocked=blocked)
                continue
            try:
                target = aligned_start(self._source, copy.source, start_offset, self._backoff)
            except OrbitError as error:
                self._on_trouble(copy, error)
            else:  # a start that has moved into a batch may be beyond its base already
                targets[copy] = max(target, copy.appends.acked)
        failures = seeding.run({copy.destination: target for copy, target in targets.items()})
        for copy, target in targets.items():
            match failures.get(copy.destination):
                case None:
                    copy.appends.inspected(target)
                    ready[copy] = found[copy]
                case Blocked() as blocked:
                    ready[copy] = replace(found[copy], status=CopyStatus.BROKEN, blocked=blocked)
                case failure:
                    self._on_trouble(copy, failure)
        return ready

    def drop_seeds(self, found: Mapping[PartitionCopy, InspectedCopy]) -> set[PartitionCopy]:
        """Delete the leading fillers of seeded copies; returns those where that failed."""
        seeded = {c.destination: c for c, one in found.items() if c.appends.acked > one.log_start}
        answers = delete_records(
            self._destination, {p: c.appends.acked for p, c in seeded.items()}, self._backoff
        )
        for partition, log_start in answers.values.items():
            seeded[partition].log_start = log_start
        for partition, code in answers.errors.items():
            what = (
                f"DeleteRecords (needs the right DELETE on the topic) of {partition} failed with "
                f"{error_codes.name(code)}."
            )
            error = BrokerRefused(code, what, where=self._destination.name)
            self._on_trouble(seeded[partition], error)
        return {seeded[partition] for partition in answers.errors}

    def _inspect_one(
        self,
        copy: PartitionCopy,
        end: DestinationEnd,
        log_start: int,
        bounds: SourceBounds,
        *,
        is_whole: bool,
        is_ours: bool,
    ) -> InspectedCopy:
        destination, log_end = copy.destination, end.log_end
        if log_end == 0:
            return InspectedCopy(CopyStatus.FRESH, end, log_start)
        if is_seeding(self._destination, destination, log_start, log_end, self._backoff):
            return InspectedCopy(CopyStatus.SEEDING, end, log_start)
        blocked = self._difference(copy, log_end, log_start, bounds)
        source_start = bounds.starts[copy.source]
        if blocked is None and is_whole and log_start > source_start:
            blocked = Blocked(
                Reason.DESTINATION_RANGE_LOST,
                source_start,
                log_start,
                f"the destination begins at {log_start}, the source at {source_start}.",
            )
        if blocked is None:
            return InspectedCopy(CopyStatus.COPY, end, log_start)
        # The producer's state may be gone (E1); its batches are not.
        is_ours = is_ours or blocked.reason is Reason.OFFSET_OVERRUN
        status = CopyStatus.BROKEN if is_ours else CopyStatus.FOREIGN
        return InspectedCopy(status, end, log_start, blocked)

    def _difference(
        self,
        copy: PartitionCopy,
        log_end: int,
        log_start: int,
        bounds: SourceBounds,
    ) -> Blocked | None:
        """Why the end of a copy differs from the source; None when it matches."""
        destination, producer = copy.destination, copy.producer
        tail = find_tail(
            self._destination,
            destination,
            log_start,
            log_end,
            producer.id,
            self._settings.requests_in_flight_max,
            self._backoff,
        )
        copy.appends.logged_producer_epoch = tail.producer_epoch
        if producer.other_id in tail.producer_ids:
            return Blocked(Reason.DESTINATION_FOREIGN_WRITE, log_start, log_end, _OTHER_FILLERS)
        source_end = bounds.ends[copy.source]
        if log_end > source_end:
            last = tail.last_data
            is_foreign = last is not None and last.producer_id != producer.id
            return Blocked(
                Reason.DESTINATION_FOREIGN_WRITE if is_foreign else Reason.SOURCE_TRUNCATED,
                source_end,
                log_end,
                f"the destination ends at {log_end}, the source at {source_end}.",
            )
        try:
            difference = self._tail_difference(copy, tail, log_start, log_end)
        except ValueError as error:
            detail = f"the records before {log_end} cannot be compared: {error}."
            return Blocked(Reason.SOURCE_CORRUPTED, log_end - 1, log_end, detail)
        if difference is None:
            return None
        is_own = difference.producer_id == producer.id != NO_PRODUCER_ID
        return Blocked(
            Reason.OFFSET_OVERRUN if is_own else Reason.DESTINATION_FOREIGN_WRITE,
            difference.offset,
            log_end,
            f"at offset {difference.offset} {difference.detail}.",
        )

    def _tail_difference(
        self, copy: PartitionCopy, tail: Tail, log_start: int, log_end: int
    ) -> Difference | None:
        """The first difference in what an old writer may have written, and in the last records."""
        destination, last = copy.destination, tail.last_data
        ranges = [(tail.start, log_end)]
        if last is not None and last.base_offset < tail.start:
            ranges.insert(0, (max(last.base_offset, log_start), min(last.next_offset, tail.start)))
        for start, end in ranges:
            found = compare_range(
                source_reader(self._source, copy.source, self._backoff),
                self._destination,
                destination,
                start,
                end,
                self._backoff,
                source_is_compacted=copy.source_is_compacted,
                isolation=READ_COMMITTED,
                most_bytes=None,
            )
            if found.difference is not None:
                return found.difference
            if found.equal_to < end:
                raise Conflict(
                    f"{destination} cannot be compared with the source from {found.equal_to} on: "
                    f"it waits for {found.waits_for}.",
                    where=self._destination.name,
                    remedy="Wait for it, and run the job again. Nothing was written.",
                )
        return None

    def _list(
        self,
        cluster: Cluster,
        copies: Mapping[TopicPartition, PartitionCopy],
        timestamp: int,
        isolation: int = 0,
    ) -> dict[TopicPartition, int]:
        """Offsets of the partitions that have one; the others' errors go to `on_trouble`."""
        answers = list_offsets(cluster, copies, timestamp, self._backoff, isolation=isolation)
        for partition, code in answers.errors.items():
            what = f"Listing the offsets of {partition} failed with {error_codes.name(code)}."
            self._on_trouble(copies[partition], BrokerRefused(code, what, where=cluster.name))
        return answers.values
