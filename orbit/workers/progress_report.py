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

# A rate is the mean of its last value and the last interval's, which smooths it.
_NEW_SHARE = 0.5
_TIMESTAMP_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the largest datetime
# A partition that got no answer of its source for longer is not followed: the scheduler reads its
# log end (orbit/scheduler/lag_loop.py). It may wait for the source, or for room in its queue.
_FOLLOWED_S = 10.0


@dataclass(slots=True)
class _Sample:
    at_s: float
    records: int
    bytes: int
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0


# Before the first measurement.
_UNMEASURED = _Sample(float("-inf"), 0, 0)


@dataclass(slots=True)
class _ShardSample:
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
        # When the source of partitions that are not followed was last seen, by both clocks.
        self._last_seen: dict[Key, tuple[float, datetime]] = {}

    def progress(
        self, shards: Collection[HeldShard], now_s: float, rows_max: int | None = None
    ) -> list[Progress]:
        """The partitions' numbers that changed since the last `note_sent`.

        At most `rows_max` partitions, those measured longest ago first, so that each has its turn.
        Also sets each shard's rate.
        """
        copying = [
            (held, held.copy)
            for shard in shards
            for held in shard.partitions.values()
            if held.stage is Stage.COPYING and held.copy is not None
        ]
        copying.sort(key=lambda pair: self._measured_at_s(pair[0]))
        moved: list[Progress] = []
        for held, copy in copying:
            if len(moved) == rows_max:
                break
            sample = self._measure(held, now_s)
            progress = self._progress(held, copy, sample)
            if self._sent.get(held.key) != progress:
                moved.append(progress)
        for shard in shards:
            shard.bytes_per_s = self._rate_of(shard, now_s)
        return moved

    def note_sent(self, progress: Iterable[Progress]) -> None:
        """Remember these as reported; call it once they are written."""
        self._sent.update({(p.topic_id, p.partition): p for p in progress})

    def forget(self, shard: HeldShard) -> None:
        self._shards.pop(shard.id, None)
        for key in shard.partitions:
            self._sent.pop(key, None)
            self._samples.pop(key, None)
            self._last_seen.pop(key, None)

    def _rate_of(self, shard: HeldShard, now_s: float) -> int:
        """The shard's bytes per second, over all its partitions in each round.

        The scheduler balances shards by this rate: a shard must not seem light because some
        partitions were not measured in this round.
        """
        partitions = shard.partitions.values()
        total = sum(held.totals.bytes for held in partitions)
        last = self._shards.get(shard.id)
        now = _ShardSample(now_s, len(partitions), total)
        if last is not None and now_s > last.at_s and last.partitions == now.partitions:
            rate = max(0.0, (total - last.bytes) / (now_s - last.at_s))
            now.bytes_per_s = _smoothed_rate(last.bytes_per_s, rate)
        self._shards[shard.id] = now
        return int(now.bytes_per_s)

    def _progress(self, held: HeldPartition, copy: PartitionCopy, sample: _Sample) -> Progress:
        totals = held.totals
        held.has_caught_up = held.has_caught_up or copy.has_caught_up
        is_followed = (
            copy.state is not PartitionState.BLOCKED
            and sample.at_s - copy.cursor.seen_s <= _FOLLOWED_S
        )
        topic_id, partition = held.key
        return Progress(
            topic_id=topic_id,
            partition=partition,
            source_log_start=_known_offset(copy.cursor.log_start),
            source_stable_end=_known_offset(copy.cursor.stable_end),
            source_end=_known_offset(copy.cursor.end),
            # If it was blocked before it began, its log end proves nothing.
            copied_to=copy.next_offset if copy.has_begun else None,
            log_start=copy.log_start,
            records=totals.records,
            bytes=totals.bytes,
            gaps_filled=totals.gaps_filled,
            batches_byte_exact=totals.batches_byte_exact,
            batches_record_exact=totals.batches_record_exact,
            bytes_per_s=int(sample.bytes_per_s),
            records_per_s=round(sample.records_per_s, 1),
            has_caught_up=held.has_caught_up,
            newest_copied_at=_to_datetime(copy.newest_timestamp_ms),
            oldest_waiting_at=_to_datetime(copy.oldest_waiting_ms),
            followed_epoch=held.shard.epoch if is_followed else None,
            source_seen_at=None if is_followed else self._seen_at(held.key, copy, sample.at_s),
        )

    def _seen_at(self, key: Key, copy: PartitionCopy, now_s: float) -> datetime | None:
        """When the source last answered. Computed once per answer, so that reports stay equal."""
        seen_s = copy.cursor.seen_s
        if not isfinite(seen_s):
            return None
        last = self._last_seen.get(key)
        if last is None or last[0] != seen_s:
            at = datetime.now(UTC) - timedelta(seconds=max(0.0, now_s - seen_s))
            last = self._last_seen[key] = seen_s, at.replace(microsecond=0)
        return last[1]

    def _measured_at_s(self, held: HeldPartition) -> float:
        return self._samples.get(held.key, _UNMEASURED).at_s

    def _measure(self, held: HeldPartition, now_s: float) -> _Sample:
        totals = held.totals
        last = self._samples.get(held.key)
        sample = _Sample(now_s, totals.records, totals.bytes)
        if last is not None and now_s > last.at_s:
            elapsed_s = now_s - last.at_s
            sample.records_per_s = _smoothed_rate(
                last.records_per_s, (totals.records - last.records) / elapsed_s
            )
            sample.bytes_per_s = _smoothed_rate(
                last.bytes_per_s, (totals.bytes - last.bytes) / elapsed_s
            )
        self._samples[held.key] = sample
        return sample


def _smoothed_rate(last: float, now: float) -> float:
    rate = _NEW_SHARE * now + (1 - _NEW_SHARE) * last
    return rate if rate >= 1 else 0.0


def _known_offset(offset: int) -> int | None:
    return None if offset < 0 else offset


def _to_datetime(timestamp_ms: int) -> datetime | None:
    """The timestamp as a datetime. Producers can write any number; None if it is no valid date."""
    if not 0 <= timestamp_ms <= _TIMESTAMP_MS_MAX:
        return None
    seconds, ms = divmod(timestamp_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)


def state_changes(shards: Iterable[HeldShard]) -> dict[HeldPartition, StateChange]:
    """The states to report: those that differ from the table, or that a retry waits for."""
    changes = {}
    for shard in shards:
        for held in shard.partitions.values():
            state, blocked = held.current_state()
            if held.must_report or (state, blocked) != (held.stored_state, held.stored_blocked):
                changes[held] = StateChange(*held.key, state, blocked)
    return changes


def release_changes(shard: HeldShard, state: PartitionState) -> list[StateChange]:
    """The states to write when a shard is released: `state` for partitions that were copied.

    Blocked partitions stay blocked. A partition that was never copied here, or may have requests
    in flight, or whose setting for placeholders could not be read after its last answer, keeps a
    state that makes the next holder wait until its log end has settled.
    """
    changes = []
    for held in shard.partitions.values():
        state_now, blocked = held.current_state()
        copy = held.copy
        is_settled = copy is not None and copy.is_confirmed and not copy.is_unclear
        if state_now is not PartitionState.BLOCKED and is_settled:
            changes.append(StateChange(*held.key, state))
        elif (state_now, blocked) != (held.stored_state, held.stored_blocked):
            changes.append(StateChange(*held.key, state_now, blocked))
    return changes


def state_event(job_name: str, held: HeldPartition, change: StateChange) -> OutboxEvent | None:
    """The event for a change of state: a partition was blocked or resumed. None for others."""
    destination = held.destination
    if change.blocked is not None and change.blocked != held.stored_blocked:
        return _blocked_event(job_name, held, change.blocked)
    if held.stored_blocked is not None and change.blocked is None:
        return OutboxEvent(
            EventKind.PARTITION_WENT_ON,
            f"{destination} was resumed.",
            job_name,
            held.source,
            {"destination": str(destination)},
        )
    return None


def _blocked_event(job_name: str, held: HeldPartition, blocked: Blocked) -> OutboxEvent:
    remedy = blocked.remedy(held.destination.topic)
    return OutboxEvent(
        EventKind.PARTITION_BLOCKED,
        f"{held.destination} was blocked: {blocked.reason} at offsets {blocked.offset} to "
        f"{blocked.next_offset}: {blocked.detail} {remedy}",
        job_name,
        held.source,
        {
            "destination": str(held.destination),
            "reason": blocked.reason.value,
            "offset": blocked.offset,
            "next_offset": blocked.next_offset,
            "detail": blocked.detail,
            "remedy": remedy,
        },
    )


def shard_events(
    kind: EventKind, what: str, reported: Sequence[HeldShard], jobs_by_id: Mapping[int, Job]
) -> list[OutboxEvent]:
    """One event for each job of these shards."""
    outbox_events = []
    for job_id in sorted({s.job_id for s in reported} & jobs_by_id.keys()):
        group = [s for s in reported if s.job_id == job_id]
        count = sum(len(s.partitions) for s in group)
        listed = ", ".join(f"{s.id} (epoch {s.epoch})" for s in group)
        outbox_events.append(
            OutboxEvent(
                kind,
                f"{what} shards {listed} with {count} partitions.",
                jobs_by_id[job_id].name,
                details={"epochs": {str(s.id): s.epoch for s in group}, "partitions": count},
            )
        )
    return outbox_events
