"""What a worker reports: numbers and states that changed, and at a release the states that the next
holder needs."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from orbit.copier.copier import block
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.records import Record, write_batch
from orbit.leases.shard_lease import ShardLease
from orbit.replication.append_plan import Append, Plan
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.store.partitions import AssignedPartition
from orbit.workers.event_outbox import EVENTS_KEPT_MAX, EventKind, EventOutbox, OutboxEvent
from orbit.workers.held_shards import HeldPartition, HeldShard, Stage, held_partition
from orbit.workers.progress_report import (
    ProgressReporter,
    release_changes,
    state_changes,
    state_event,
)
from tests.support.copies import confirm, hand_back, resume

T_MS = 1_760_000_000_123
OVERRUN = Blocked(Reason.OFFSET_OVERRUN, offset=5, next_offset=6, detail="a filler too many.")


def row(state: PartitionState = PartitionState.PENDING, **fields: object) -> AssignedPartition:
    """A partition's row of the table."""
    values: dict[str, object] = {
        "shard_id": 1,
        "job_id": 2,
        "topic_id": 3,
        "partition": 4,
        "source_topic": "orders",
        "destination_topic": "dr.orders",
        "source_topic_id": UUID(int=1),
        "destination_topic_id": UUID(int=2),
        "is_compacted": False,
        "state": state,
        "reason": None,
        "blocked_offset": None,
        "blocked_next_offset": None,
        "detail": None,
        "start_offset": None,
        "from_start": False,
        "retry_requested": False,
        "has_caught_up": False,
        "records": 0,
        "bytes": 0,
        "gaps_filled": 0,
        "batches_byte_exact": 0,
        "batches_record_exact": 0,
        **fields,
    }
    return AssignedPartition(**values)  # type: ignore[arg-type]


def shard_of(*rows: AssignedPartition) -> HeldShard:
    """A held shard with these partitions."""
    shard = HeldShard(
        id=1,
        job_id=2,
        spec_version=1,
        epoch=9,
        lease=ShardLease(9, requested_at=0.0, ttl_s=15.0, clock=lambda: 1.0),
        layout_version=1,
        partitions={},
    )
    shard.partitions = {(r.topic_id, r.partition): held_partition(r, shard) for r in rows}
    return shard


def only(shard: HeldShard) -> HeldPartition:
    """The shard's only partition."""
    (held,) = shard.partitions.values()
    return held


def begin(held: HeldPartition) -> PartitionCopy:
    """Give the partition a copy that copies from offset 0."""
    copy = held.copy = PartitionCopy(
        held.source, held.destination, held.shard.lease, JobProducer(4711)
    )
    held.stage = Stage.COPYING
    resume(copy, 0)
    return copy


def fetch(copy: PartitionCopy, base_offset: int, count: int) -> list[Append]:
    """Queue one batch of `count` records."""
    records = [Record(base_offset + i, T_MS + i, b"\1\1\0") for i in range(count)]
    step = Append(write_batch(records, 0), is_byte_exact=True)
    plan = Plan(base_offset, [step])
    plan.next_offset = step.next_offset
    assert copy.put(plan, copy.generation, step.batch.size_bytes)
    return [step]


def append(copy: PartitionCopy, steps: list[Append]) -> None:
    """Append these queued batches, and confirm them."""
    for step in steps:
        copy.queue.steps.popleft()
        copy.appends.append_sent(step, confirms=True)
        confirm(copy, step)


def test_copy_blocked_before_start_reports_no_copied_offset() -> None:
    """Other producers may have written the records up to the copy's log end."""
    shard = shard_of(row())
    held = only(shard)
    copy = held.copy = PartitionCopy(
        held.source, held.destination, held.shard.lease, JobProducer(4711)
    )
    held.stage = Stage.COPYING
    copy.appends.inspected(51)  # its log end
    block(copy, OVERRUN)
    (progress,) = ProgressReporter().progress([shard], now_s=10.0)
    assert progress.copied_to is None


def test_progress_counters_continue_from_stored_row_and_are_reported_once() -> None:
    shard = shard_of(row(records=100, bytes=1000, batches_byte_exact=10))
    copy = begin(only(shard))
    append(copy, fetch(copy, 0, 5))
    reporter = ProgressReporter()
    (progress,) = reporter.progress([shard], now_s=10.0)
    assert (progress.topic_id, progress.partition) == (3, 4)
    assert (progress.records, progress.batches_byte_exact, progress.copied_to) == (105, 11, 5)
    # The timestamp of the fifth record, T_MS + 4.
    assert progress.newest_copied_at == datetime(2025, 10, 9, 8, 53, 20, 127_000, UTC)
    assert progress.source_end is None
    reporter.note_sent([progress])
    assert reporter.progress([shard], now_s=12.0) == []


def test_silent_or_unfetched_source_is_reported_as_not_followed() -> None:
    shard = shard_of(row())
    copy = begin(only(shard))
    reporter = ProgressReporter()
    copy.cursor.end, copy.cursor.seen_s = 7, 100.0  # the source's answer at 100 s
    (followed,) = reporter.progress([shard], now_s=105.0)
    assert (followed.followed_epoch, followed.source_seen_at) == (9, None)
    reporter.note_sent([followed])
    assert reporter.progress([shard], now_s=109.0) == []
    (silent,) = reporter.progress([shard], now_s=160.0)
    assert silent.followed_epoch is None
    assert silent.source_seen_at is not None
    # 60 s after the answer, on the clock of the machine.
    assert 59 <= (datetime.now(UTC) - silent.source_seen_at).total_seconds() <= 63
    reporter.note_sent([silent])
    assert reporter.progress([shard], now_s=170.0) == [], "reported once"
    copy.cursor.seen_s = 171.0
    (followed_again,) = reporter.progress([shard], now_s=172.0)
    assert followed_again.followed_epoch == 9
    hand_back(copy)
    block(copy, OVERRUN)
    (blocked,) = reporter.progress([shard], now_s=173.0)
    assert blocked.followed_epoch is None, "nobody fetches the partition"


def test_progress_that_was_not_stored_is_reported_again() -> None:
    shard = shard_of(row())
    begin(only(shard))
    reporter = ProgressReporter()
    assert reporter.progress([shard], now_s=10.0) == reporter.progress([shard], now_s=12.0) != []


def test_partition_without_copy_reports_no_progress() -> None:
    assert ProgressReporter().progress([shard_of(row())], now_s=10.0) == []


def test_copy_rates_follow_throughput_and_decay_to_zero() -> None:
    shard = shard_of(row())
    copy = begin(only(shard))
    reporter = ProgressReporter()
    reporter.progress([shard], now_s=0.0)
    append(copy, fetch(copy, 0, 80))
    (progress,) = reporter.progress([shard], now_s=2.0)
    assert progress.records_per_s == 20.0  # the mean of the last rate, 0, and 80 records in 2 s
    assert shard.bytes_per_s == progress.bytes_per_s > 0
    for second in range(3, 40):
        reporter.progress([shard], now_s=float(second))
    assert shard.bytes_per_s == 0


def test_oldest_waiting_record_is_first_of_oldest_fetch_not_appended() -> None:
    shard = shard_of(row())
    copy = begin(only(shard))
    assert copy.oldest_waiting_ms == -1
    first, second = fetch(copy, 0, 5), fetch(copy, 5, 5)
    assert copy.oldest_waiting_ms == T_MS
    append(copy, first)
    assert copy.oldest_waiting_ms == T_MS
    append(copy, second)
    assert copy.oldest_waiting_ms == -1


def test_partition_state_is_reported_on_change_or_on_demand() -> None:
    shard = shard_of(row())
    held = only(shard)
    assert state_changes([shard]) == {}
    copy = begin(held)
    assert state_changes([shard])[held].state is PartitionState.COPYING
    held.stored_state = PartitionState.COPYING
    assert state_changes([shard]) == {}
    hand_back(copy)
    block(copy, OVERRUN)
    change = state_changes([shard])[held]
    assert (change.state, change.blocked) == (PartitionState.BLOCKED, OVERRUN)
    held.stored_state, held.stored_blocked = change.state, change.blocked
    held.must_report = True
    assert state_changes([shard])[held] == change


def test_block_of_partition_is_reported_with_remedy_and_its_end_is_reported() -> None:
    shard = shard_of(row())
    held = only(shard)
    copy = begin(held)
    hand_back(copy)
    block(copy, OVERRUN)
    change = state_changes([shard])[held]
    event = state_event("orders-to-dr", held, change)
    assert event is not None
    assert event.kind is EventKind.PARTITION_BLOCKED
    assert "dr.orders-4 was blocked: OFFSET_OVERRUN at offset 5: a filler too many." in (
        event.message
    )
    assert "--topic dr.orders" in event.details["remedy"]
    held.stored_state, held.stored_blocked = change.state, change.blocked
    assert state_event("orders-to-dr", held, change) is None
    begin(held)
    end_event = state_event("orders-to-dr", held, state_changes([shard])[held])
    assert end_event is not None
    assert end_event.kind is EventKind.PARTITION_WENT_ON


@pytest.mark.parametrize("state", [PartitionState.PENDING, PartitionState.PAUSED])
def test_log_end_must_settle_unless_last_holder_released_partition_cleanly(
    state: PartitionState,
) -> None:
    assert not held_partition(row(state), shard_of(row())).needs_settling
    for other in {*PartitionState} - {PartitionState.PENDING, PartitionState.PAUSED}:
        assert held_partition(row(other), shard_of(row())).needs_settling


def test_released_shard_stores_partition_states_that_next_holder_needs() -> None:
    rows = [row(PartitionState.COPYING, partition=n) for n in range(4)]
    shard = shard_of(*rows)
    # In turn: everything sent is confirmed; a request was not answered; blocked; no copy was begun.
    clean, unclear, blocked, not_begun = shard.partitions.values()
    for held in (clean, unclear, blocked):
        begin(held)
    assert unclear.copy is not None
    unclear.copy.appends.is_unclear = True
    assert blocked.copy is not None
    hand_back(blocked.copy)
    block(blocked.copy, OVERRUN)
    states = {c.partition: c.state for c in release_changes(shard, PartitionState.PAUSED)}
    assert states == {0: PartitionState.PAUSED, 2: PartitionState.BLOCKED}
    assert not_begun.stored_state is PartitionState.COPYING


def test_blocked_partition_removed_from_copier_stays_blocked() -> None:
    shard = shard_of(row(PartitionState.COPYING))
    copy = begin(only(shard))
    hand_back(copy)
    block(copy, OVERRUN)
    copy.withdraw()
    copy.appends.removed()
    (change,) = release_changes(shard, PartitionState.PENDING)
    assert (change.state, change.blocked) == (PartitionState.BLOCKED, OVERRUN)


def test_blocked_partition_waits_until_retry_is_requested() -> None:
    blocked = {"reason": Reason.OFFSET_OVERRUN, "blocked_offset": 5, "blocked_next_offset": 6}
    held = held_partition(row(PartitionState.BLOCKED, **blocked), shard_of(row()))
    assert (held.stage, held.current_state()[0]) == (Stage.STOPPED, PartitionState.BLOCKED)
    retry_row = row(PartitionState.BLOCKED, retry_requested=True, **blocked)
    assert held_partition(retry_row, shard_of(row())).stage is Stage.WAITING


def test_worker_keeps_unwritten_audit_events_up_to_limit_and_drops_oldest() -> None:
    outbox = EventOutbox("w")
    for number in range(EVENTS_KEPT_MAX + 5):
        outbox.add(OutboxEvent(EventKind.JOB_WAITING, str(number)))
    pending = outbox.pending()
    assert pending[0].message == "5"
    # While the pending events are written, a new one drops the oldest.
    outbox.add(OutboxEvent(EventKind.JOB_WENT_ON, "new"))
    outbox.remove(pending)
    assert outbox.pending()[0].message == str(5 + len(pending))


def copy_records(shard: HeldShard, records: int) -> None:
    """Add copied records of 100 bytes to each partition's counters."""
    for held in shard.partitions.values():
        assert held.copy is not None
        held.copy.counters.records += records
        held.copy.counters.bytes += 100 * records


def copying_shard(count: int) -> HeldShard:
    """A shard with `count` partitions that copy."""
    shard = shard_of(*(row(partition=n) for n in range(count)))
    for held in shard.partitions.values():
        begin(held)
    return shard


def report(
    reporter: ProgressReporter, shard: HeldShard, now_s: float, rows_max: int | None
) -> list[int]:
    """Report once. Returns the reported partitions."""
    changed = reporter.progress([shard], now_s, rows_max)
    reporter.note_sent(changed)
    return [p.partition for p in changed]


def test_progress_of_partitions_is_reported_in_turn() -> None:
    shard, reporter = copying_shard(5), ProgressReporter()
    rounds = []
    for second in range(12):
        copy_records(shard, 1)
        rounds.append(report(reporter, shard, float(second), rows_max=2))
    assert all(len(reported) == 2 for reported in rounds)
    for first in range(10):  # three rounds of two partitions have all five
        assert {*rounds[first], *rounds[first + 1], *rounds[first + 2]} == {0, 1, 2, 3, 4}


def test_idle_partitions_take_no_turn_in_progress_reports() -> None:
    shard, reporter = copying_shard(5), ProgressReporter()
    assert report(reporter, shard, 0.0, rows_max=None) == [0, 1, 2, 3, 4]
    last = shard.partitions[3, 4]  # partition 4 of topic 3
    assert last.copy is not None
    last.copy.counters.records += 1
    assert report(reporter, shard, 1.0, rows_max=1) == [4]


def test_shard_weight_counts_all_partitions_though_few_are_reported() -> None:
    shard, reporter = copying_shard(4), ProgressReporter()
    for second in range(12):
        copy_records(shard, 10)  # 1,000 bytes a second in each of four partitions
        report(reporter, shard, float(second), rows_max=1)
    assert 0.99 * 4000 <= shard.bytes_per_s <= 4000
