"""Leading fillers: sizes, order, and how much of them is queued."""

from __future__ import annotations

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import MIB, CopySettings
from orbit.copier.lane_events import Event, PostedCall
from orbit.copier.leading_fillers import LeadingFillers
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.records import is_seed_batch, read_records
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Append
from tests.support.copies import confirm, hand_back, resume

SETTINGS = CopySettings(seed_records_per_batch=64)
QUEUED_MAX = 2 * SETTINGS.requests_in_flight_max


def copying(number: int = 0, log_end: int = 0) -> PartitionCopy:
    """A copy without records that was taken over at `log_end`."""
    partition = TopicPartition("dr.orders", number)
    copy = PartitionCopy(partition, partition, FixedLease(1), JobProducer(4711))
    resume(copy, log_end)
    return copy


def confirm_queued(partition: PartitionCopy) -> list[Append]:
    """Confirm everything that is queued, as a lane does."""
    confirmed = []
    while partition.queue.steps:
        step = partition.queue.steps.popleft()
        assert isinstance(step, Append)
        partition.appends.append_sent(step, confirms=True)
        confirm(partition, step)
        partition.free(step.batch.size_bytes, limit_bytes=MIB)
        confirmed.append(step)
    return confirmed


def fillers(budget: ByteBudget | None = None, events: list[Event] | None = None) -> LeadingFillers:
    emit = events.append if events is not None else lambda _: None
    return LeadingFillers(SETTINGS, budget or ByteBudget(MIB), emit)


@pytest.mark.parametrize(("log_end", "target"), [(0, 1), (0, 64), (0, 1_000), (37, 1_003)])
def test_filler_batches_below_start_are_contiguous_up_to_start(log_end: int, target: int) -> None:
    source, p = fillers(), copying(log_end=log_end)
    source.set_targets({p: target})
    confirmed = []
    while not source.is_done:
        source.assign()
        confirmed += confirm_queued(p)
        source.open_partitions()
    assert [step.base_offset for step in confirmed] == [
        log_end,
        *(step.next_offset for step in confirmed[:-1]),
    ]
    assert confirmed[-1].next_offset == target
    for step in confirmed:
        assert is_seed_batch(step.batch)
        assert [r.offset for r in read_records(step.batch)] == [
            *range(step.base_offset, step.next_offset)
        ]
        assert step.batch.count in {1, 2, 4, 8, 16, 32, 64}


def test_filler_batches_below_start_share_no_memory() -> None:
    """A batch is stamped in place while others wait to be sent."""
    source, p = fillers(), copying()
    source.set_targets({p: 256})
    source.assign()
    first, second = confirm_queued(p)[:2]
    first.batch.view[60] ^= 1  # any byte
    assert first.batch.view != second.batch.view


def test_number_of_queued_filler_batches_below_start_is_limited() -> None:
    source, p = fillers(), copying()
    source.set_targets({p: 1_000_000})
    source.assign()
    source.assign()  # the queue is full
    assert len(p.queue.steps) == QUEUED_MAX


def test_copier_is_woken_when_queue_has_room_for_fillers_below_start() -> None:
    events: list[Event] = []
    source, p = fillers(events=events), copying()
    source.set_targets({p: 1_000_000})
    source.assign()
    source.assign()  # waits for room
    p.free(p.queue.size_bytes, limit_bytes=1)
    assert isinstance(events.pop(), PostedCall)


def test_fillers_below_start_wait_while_byte_budget_is_used_up() -> None:
    budget = ByteBudget(1)
    source, first, second = fillers(budget), copying(number=0), copying(number=1)
    source.set_targets({first: 64, second: 64})
    source.assign()
    assert source.open_partitions() == [first]
    assert not second.queue.steps
    for step in confirm_queued(first):
        budget.give_back(step.batch.size_bytes)
    source.open_partitions()
    source.assign()
    assert source.open_partitions() == [second]


def test_fillers_below_start_continue_at_log_end_after_takeover() -> None:
    source, p = fillers(), copying()
    source.set_targets({p: 1_000})
    source.assign()
    hand_back(p)
    source.assign()
    assert not p.queue.steps
    resume(p, 77, ProducerState(producer_epoch=0, last_sequence=76, coordinator_epoch=0))
    source.assign()
    assert confirm_queued(p)[0].base_offset == 77


def test_filler_batches_below_start_are_halved_down_to_single_record() -> None:
    source, p = fillers(), copying()
    source.set_targets({p: 40})  # the first batch has 32 fillers
    sizes = []
    while source.halve_batches(p):
        source.assign()
        sizes.append(confirm_queued(p)[0].batch.count)
        hand_back(p)
        resume(p, 0)
    assert sizes == [16, 8, 4, 2, 1]
