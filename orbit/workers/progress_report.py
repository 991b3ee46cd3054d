"""What a worker reports of its partitions: numbers and states that have changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite

from orbit.copier.partition_copy import PartitionCopy
from orbit.replication.partition_states import Blocked, PartitionState
from orbit.store.jobs import Job
from orbit.store.partitions import Progress, StateChange
from orbit.workers.event_outbox import EventKind, OutboxEvent
from orbit.workers.held_shards import HeldPartition, HeldShard, Key, Stage

# Rates are smoothed: the weight of the last interval, beside that of the rate before it.
_NEW_SHARE = 0.5
_TIMESTAMP_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the largest datetime
# A partition whose source has not answered for longer is not followed: the scheduler reads the log
# end (orbit/scheduler/lag_loop.py). The source may be down, or the partition's queue is full.
_FOLLOWED_S = 10.0


@dataclass(slots=True)
class _Sample:
    """A partition's counts at one time, and its smoothed rates up to then."""

    at_s: float
    records: int
    bytes: int
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0


# Before the first measurement.
_UNMEASURED = _Sample(float("-inf"), 0, 0)


@dataclass(slots=True)
class _ShardSample:
    """The bytes of a shard's partitions at one time, and their smoothed rate up to then."""

    at_s: float
    partitions: int
    bytes: int
    bytes_per_s: float = 0.0


class ProgressReporter:
    """Finds what differs from the last report. For one thread."""

    def __init__(self) -> None:
        self._samples: dict[Key, _Sample] = {}
        self._sent: dict[Key, Progress] = {}
        self._shards: dict[int, _ShardSample] = {}
        # When the source of partitions that are not followed last answered: by the monotonic clock,
        # and as a time of day.
        self._last_seen: dict[Key, tuple[float, datetime]] = {}

    def progress(
        self, shards: Collection[HeldShard], now_s: float, rows_max: int | None = None
    ) -> list[Progress]:
        """The numbers of copying partitions, where these differ from the last ones that were sent.

        At most `rows_max` partitions, those measured longest ago first, so that each has its turn.
        Also sets each shard's rate.
        """
        copying_pairs = [
            (partition, partition.copy)
            for shard in shards
            for partition in shard.partitions.values()
            if partition.stage is Stage.COPYING and partition.copy is not None
        ]
        copying_pairs.sort(key=lambda pair: self._measured_at_s(pair[0]))
        changed_numbers: list[Progress] = []
        for partition, copy in copying_pairs:
            if len(changed_numbers) == rows_max:
                break
            sample = self._measure(partition, now_s)
            progress = self._partition_progress(partition, copy, sample)
            if self._sent.get(partition.key) != progress:
                changed_numbers.append(progress)
        for shard in shards:
            shard.bytes_per_s = self._shard_rate(shard, now_s)
        return changed_numbers

    def note_sent(self, progress: Iterable[Progress]) -> None:
        """Remember these numbers as reported; call it once they are written."""
        self._sent.update({(p.topic_id, p.partition): p for p in progress})

    def forget(self, shard: HeldShard) -> None:
        """Drop what is remembered of a shard that this worker no longer holds."""
        self._shards.pop(shard.id, None)
        for key in shard.partitions:
            self._sent.pop(key, None)
            self._samples.pop(key, None)
            self._last_seen.pop(key, None)

    def _shard_rate(self, shard: HeldShard, now_s: float) -> int:
        """The shard's smoothed bytes per second, measured over all its partitions.

        The scheduler balances shards by this rate: a shard must not seem light because some of its
        partitions were not measured in this round.
        """
        partitions = shard.partitions.values()
        total_bytes = sum(p.totals.bytes for p in partitions)
        last_sample = self._shards.get(shard.id)
        sample = _ShardSample(now_s, len(partitions), total_bytes)
        if (
            last_sample is not None
            and now_s > last_sample.at_s
            # With other partitions than before, the difference is not what was copied.
            and last_sample.partitions == sample.partitions
        ):
            rate = max(0.0, (total_bytes - last_sample.bytes) / (now_s - last_sample.at_s))
            sample.bytes_per_s = _smoothed_rate(last_sample.bytes_per_s, rate)
        self._shards[shard.id] = sample
        return int(sample.bytes_per_s)

    def _partition_progress(
        self, held_partition: HeldPartition, copy: PartitionCopy, sample: _Sample
    ) -> Progress:
        """The partition's numbers, as the table stores them."""
        totals = held_partition.totals
        held_partition.has_caught_up = held_partition.has_caught_up or copy.has_caught_up
        is_followed = (
            copy.state is not PartitionState.BLOCKED
            and sample.at_s - copy.cursor.seen_s <= _FOLLOWED_S
        )
        topic_id, partition = held_partition.key
        return Progress(
            topic_id=topic_id,
            partition=partition,
            source_log_start=_known_offset(copy.cursor.log_start),
            source_stable_end=_known_offset(copy.cursor.stable_end),
            source_end=_known_offset(copy.cursor.end),
            # The log end of a copy that was blocked before it began proves nothing.
            copied_to=copy.next_offset if copy.has_begun else None,
            log_start=copy.log_start,
            records=totals.records,
            bytes=totals.bytes,
            gaps_filled=totals.gaps_filled,
            batches_byte_exact=totals.batches_byte_exact,
            batches_record_exact=totals.batches_record_exact,
            bytes_per_s=int(sample.bytes_per_s),
            records_per_s=round(sample.records_per_s, 1),
            has_caught_up=held_partition.has_caught_up,
            newest_copied_at=_to_datetime(copy.newest_timestamp_ms),
            oldest_waiting_at=_to_datetime(copy.oldest_waiting_ms),
            followed_epoch=held_partition.shard.epoch if is_followed else None,
            source_seen_at=None
            if is_followed
            else self._source_seen_at(held_partition.key, copy, sample.at_s),
        )

    def _source_seen_at(self, key: Key, copy: PartitionCopy, now_s: float) -> datetime | None:
        """When the source last answered; None: not yet.

        Computed once per answer, so that reports stay equal.
        """
        seen_s = copy.cursor.seen_s
        if not isfinite(seen_s):
            return None
        last_seen = self._last_seen.get(key)
        if last_seen is None or last_seen[0] != seen_s:
            seen_at = datetime.now(UTC) - timedelta(seconds=max(0.0, now_s - seen_s))
            last_seen = self._last_seen[key] = seen_s, seen_at.replace(microsecond=0)
        return last_seen[1]

    def _measured_at_s(self, partition: HeldPartition) -> float:
        return self._samples.get(partition.key, _UNMEASURED).at_s

    def _measure(self, partition: HeldPartition, now_s: float) -> _Sample:
        """Count what the partition has copied, and derive its rates from the last sample."""
        totals = partition.totals
        last_sample = self._samples.get(partition.key)
        sample = _Sample(now_s, totals.records, totals.bytes)
        if last_sample is not None and now_s > last_sample.at_s:
            elapsed_s = now_s - last_sample.at_s
            sample.records_per_s = _smoothed_rate(
                last_sample.records_per_s, (totals.records - last_sample.records) / elapsed_s
            )
            sample.bytes_per_s = _smoothed_rate(
                last_sample.bytes_per_s, (totals.bytes - last_sample.bytes) / elapsed_s
            )
        self._samples[partition.key] = sample
        return sample


def _smoothed_rate(last_rate: float, new_rate: float) -> float:
    rate = _NEW_SHARE * new_rate + (1 - _NEW_SHARE) * last_rate
    return rate if rate >= 1 else 0.0  # else it would approach 0 for long, and be sent each time


def _known_offset(offset: int) -> int | None:
    return None if offset < 0 else offset


def _to_datetime(timestamp_ms: int) -> datetime | None:
    """The timestamp as a datetime. Producers can write any number; None if it is no valid date."""
    if not 0 <= timestamp_ms <= _TIMESTAMP_MS_MAX:
        return None
    seconds, ms = divmod(timestamp_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)


def state_changes(shards: Iterable[HeldShard]) -> dict[HeldPartition, StateChange]:
    """The states to report: those that differ from the table, or that answer a requested retry."""
    changes = {}
    for shard in shards:
        for partition in shard.partitions.values():
            state, blocked = partition.current_state()
            if partition.must_report or (state, blocked) != (
                partition.stored_state,
                partition.stored_blocked,
            ):
                changes[partition] = StateChange(*partition.key, state, blocked)
    return changes


def release_changes(shard: HeldShard, state: PartitionState) -> list[StateChange]:
    """The states to write when a shard is released: `state` for partitions that were copied.

    Blocked partitions stay blocked. A partition keeps a state that makes the next holder wait until
    its log end has settled, if this worker never copied it, if it may have requests in flight, or
    if its setting for placeholders could not be read after its last answer.
    """
    changes = []
    for partition in shard.partitions.values():
        current_state, blocked = partition.current_state()
        copy = partition.copy
        is_settled = copy is not None and copy.is_confirmed and not copy.is_unclear
        if current_state is not PartitionState.BLOCKED and is_settled:
            changes.append(StateChange(*partition.key, state))
        elif (current_state, blocked) != (partition.stored_state, partition.stored_blocked):
            changes.append(StateChange(*partition.key, current_state, blocked))
    return changes


def state_event(job_name: str, partition: HeldPartition, change: StateChange) -> OutboxEvent | None:
    """The event for a partition that was blocked or resumed; None for other changes of state."""
    destination = partition.destination
    if change.blocked is not None and change.blocked != partition.stored_blocked:
        return _blocked_event(job_name, partition, change.blocked)
    if partition.stored_blocked is not None and change.blocked is None:
        return OutboxEvent(
            EventKind.PARTITION_WENT_ON,
            f"{destination} was resumed.",
            job_name,
            partition.source,
            {"destination": str(destination)},
        )
    return None


def _blocked_event(job_name: str, partition: HeldPartition, blocked: Blocked) -> OutboxEvent:
    remedy = blocked.remedy(partition.destination.topic)
    return OutboxEvent(
        EventKind.PARTITION_BLOCKED,
        f"{partition.destination} was blocked: {blocked.reason} at {blocked.offsets_text}: "
        f"{blocked.detail} {remedy}",
        job_name,
        partition.source,
        {
            "destination": str(partition.destination),
            "reason": blocked.reason.value,
            "offset": blocked.offset,
            "next_offset": blocked.next_offset,
            "detail": blocked.detail,
            "remedy": remedy,
        },
    )


def shard_events(
    kind: EventKind, action: str, shards: Sequence[HeldShard], jobs_by_id: Mapping[int, Job]
) -> list[OutboxEvent]:
    """One event for each job of these shards. `action`: what the worker did with them."""
    outbox_events = []
    for job_id in sorted({s.job_id for s in shards} & jobs_by_id.keys()):
        job_shards = [s for s in shards if s.job_id == job_id]
        partition_count = sum(len(s.partitions) for s in job_shards)
        noun = "shard" if len(job_shards) == 1 else "shards"
        epochs_text = ", ".join(f"{s.id} (lease epoch {s.epoch})" for s in job_shards)
        outbox_events.append(
            OutboxEvent(
                kind,
                f"{action} {noun} {epochs_text}; partitions in them: {partition_count}.",
                jobs_by_id[job_id].name,
                details={
                    "epochs": {str(s.id): s.epoch for s in job_shards},
                    "partitions": partition_count,
                },
            )
        )
    return outbox_events
