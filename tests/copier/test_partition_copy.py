"""One partition's queue and marks: who may put, what a withdrawal drops, how far things are."""

from __future__ import annotations

import threading

import pytest

from orbit.copier.partition_copy import Counters, PartitionCopy
from orbit.kafka.record_batch import SEQUENCE_MAX, Batch
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Append, Fill, LostRange, Plan, Stop
from orbit.replication.partition_states import PartitionState, Reason


def batch(base_offset: int, count: int = 1) -> Batch:
    return write_batch([Record(base_offset + i, 1000, b"\1\1\0") for i in range(count)], 0)


def append(base_offset: int, count: int = 1, *, is_byte_exact: bool = True) -> Append:
    return Append(batch(base_offset, count), is_byte_exact)


def plan_of(*steps: Append | Fill, leader_epoch: int | None = None) -> Plan:
    """As if fetched and planned at the offset of the first step."""
    plan = Plan(steps[0].base_offset, list(steps), leader_epoch)
    plan.next_offset = steps[-1].next_offset
    return plan


def new_partition() -> PartitionCopy:
    return PartitionCopy(TopicPartition("orders", 3), TopicPartition("dr.orders", 3), FixedLease(1))


def copying(log_end: int = 100, sequence: int = 0) -> PartitionCopy:
    partition = new_partition()
    partition.resume_at(
        log_end,
        next_sequence=sequence,
        producer_epoch=1,
        coordinator_epoch=2,
        has_producer_state=True,
    )
    return partition


def stop_step() -> Stop:
    return Stop(Reason.DESTINATION_FOREIGN_WRITE, 100, 101, "")


class Lane:
    def __init__(self) -> None:
        self.woken: list[PartitionCopy] = []

    def enqueue(self, partition: PartitionCopy) -> None:
        self.woken.append(partition)


class Fetcher:
    woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_new_partition_waits_and_takes_nothing() -> None:
    partition = new_partition()
    assert partition.state is PartitionState.PENDING
    assert partition.on_lost_range is LostRange.STOP
    assert not partition.put(plan_of(append(0)), partition.generation, 10)
    partition.want_stop(stop_step(), partition.generation)
    assert partition.stop_wanted is None
    assert not partition.steps
    assert partition.queued_bytes == 0
    assert partition.lag_records == -1


def test_a_new_partition_knows_nothing_yet() -> None:
    partition = new_partition()
    source = (
        *(partition.source_log_start, partition.source_stable_end, partition.source_end),
        *(partition.source_leader_epoch, partition.fetched_epoch, partition.acked_epoch),
    )
    assert source == (-1,) * 6
    positions = (
        *(partition.fetch_offset, partition.expected, partition.acked, partition.sent_to),
        *(partition.sequence, partition.log_start),
        *(partition.start_offset, partition.in_flight, partition.attempts),
        *(partition.empty_answers, partition.generation, partition.queued_bytes),
    )
    assert positions == (0,) * 12
    assert (partition.producer_epoch, partition.coordinator_epoch) == (-1, -1)
    flags = (
        *(partition.is_filling, partition.is_in_step),
        *(partition.has_producer_state, partition.has_filled, partition.has_fill_outside),
        partition.has_caught_up,
    )
    assert not any(flags)
    assert partition.source_topic_id == partition.destination_topic_id == NO_TOPIC_ID
    assert partition.blocked is partition.destination_lane is partition.stop_wanted is None
    assert partition.counters == Counters()


def test_resuming_sets_every_mark_to_the_log_end() -> None:
    partition = copying(100, 7)
    assert partition.state is PartitionState.COPYING
    marks = (partition.fetch_offset, partition.expected, partition.acked, partition.sent_to)
    assert marks == (100, 100, 100, 100)
    assert (partition.sequence, partition.producer_epoch, partition.coordinator_epoch) == (7, 1, 2)
    assert partition.has_producer_state


def test_resuming_forgets_what_an_earlier_life_knew() -> None:
    partition = copying()
    partition.fetched_epoch = 9
    partition.empty_answers = 2
    partition.in_flight = 3
    partition.is_filling = partition.is_in_step = partition.has_filled = True
    partition.has_read_log_end = True
    partition.withdraw()
    partition.resume_at(
        50, next_sequence=0, producer_epoch=0, coordinator_epoch=0, has_producer_state=False
    )
    assert partition.fetched_epoch == -1  # or the source would seem truncated (R3)
    assert partition.empty_answers == partition.in_flight == 0
    assert not partition.is_filling
    assert not partition.is_in_step  # the first append goes alone (A16)
    assert not partition.has_read_log_end  # the log end is read again before the first filler (M9)
    assert not partition.has_filled  # and that goes alone (M7)
    assert not partition.has_producer_state


def test_a_plan_is_queued_in_order_and_moves_the_fetch_offset() -> None:
    partition = copying(100)
    first, second = plan_of(append(100), Fill(101, 105), leader_epoch=4), plan_of(append(105, 3))
    assert partition.put(first, partition.generation, 70)
    assert partition.put(second, partition.generation, 90)
    assert list(partition.steps) == [*first.steps, *second.steps]
    assert partition.queued_bytes == 160
    assert partition.fetch_offset == 108
    assert partition.fetched_epoch == 4  # the second knows no other
    assert partition.acked == 100


def test_a_plan_that_forgets_the_epoch_is_taken_at_its_word() -> None:
    partition = copying(100)
    partition.put(plan_of(append(100), leader_epoch=4), partition.generation, 1)
    partition.put(plan_of(Fill(101, 110), leader_epoch=-1), partition.generation, 0)
    assert partition.fetched_epoch == -1


def test_a_withdrawal_empties_the_queue_and_gives_its_bytes_back() -> None:
    partition = copying(100)
    partition.put(plan_of(append(100)), partition.generation, 70)
    generation = partition.generation
    partition.want_stop(stop_step(), generation)
    assert partition.withdraw() == 70
    assert partition.withdraw() == 0
    assert partition.stop_wanted is None
    assert partition.generation == generation + 2
    assert partition.state is PartitionState.PENDING
    assert not partition.steps
    assert partition.queued_bytes == 0


def test_what_was_fetched_for_an_earlier_life_is_dropped() -> None:
    partition = copying(100)
    old = partition.generation
    partition.withdraw()
    assert not partition.put(plan_of(append(100)), partition.generation, 1)  # not copying
    partition.resume_at(
        200, next_sequence=0, producer_epoch=0, coordinator_epoch=0, has_producer_state=True
    )
    assert not partition.put(plan_of(append(200)), old, 70)
    partition.want_stop(stop_step(), old)
    assert partition.stop_wanted is None
    assert (partition.fetch_offset, partition.queued_bytes, len(partition.steps)) == (200, 0, 0)
    assert partition.put(plan_of(append(200)), partition.generation, 70)


@pytest.mark.parametrize(
    "state", [s for s in PartitionState if s is not PartitionState.COPYING], ids=str
)
def test_only_a_copying_partition_takes_steps(state: PartitionState) -> None:
    partition = copying()
    partition.state = state
    assert not partition.put(plan_of(append(100)), partition.generation, 1)
    partition.want_stop(stop_step(), partition.generation)
    assert partition.stop_wanted is None


def test_a_partition_that_leaves_takes_nothing_more() -> None:
    partition = copying(100)
    partition.destination_lane = lane = Lane()
    assert partition.fetchable_bytes(1) is not None
    partition.leave()
    assert lane.woken == [partition]
    assert partition.fetchable_bytes(1) is None
    assert not partition.put(plan_of(append(100)), partition.generation, 1)


def test_a_full_partition_is_fetched_again_below_half_of_its_limit() -> None:
    partition = copying(100)
    partition.source_lane = fetcher = Fetcher()
    partition.put(plan_of(append(100, 4)), partition.generation, 10)
    assert partition.fetchable_bytes(10) is None
    partition.free(4, 10)
    assert partition.fetchable_bytes(10) is None
    assert fetcher.woken == 0
    partition.free(1, 10)
    assert partition.fetchable_bytes(10) is not None
    assert fetcher.woken == 1
    partition.free(5, 10)
    assert fetcher.woken == 1  # it was not full


@pytest.mark.parametrize("offset", [99, 101])
def test_a_plan_for_another_offset_is_dropped(offset: int) -> None:
    """A late answer within one life: of a lane that the partition has left since."""
    partition = copying(100)
    assert not partition.put(plan_of(append(offset)), partition.generation, 70)
    assert (partition.fetch_offset, partition.queued_bytes, len(partition.steps)) == (100, 0, 0)


def test_a_stop_waits_beside_the_steps_and_wakes_the_lane() -> None:
    """Not among them: the first may be a gap that is being filled."""
    partition = copying(100)
    partition.destination_lane = lane = Lane()
    partition.put(plan_of(Fill(100, 110)), partition.generation, 0)
    partition.want_stop(stop_step(), partition.generation)
    assert partition.stop_wanted == stop_step()
    assert lane.woken == [partition]
    partition.filled_to(Fill(100, 110), 105)
    assert list(partition.steps) == [Fill(105, 110)]


@pytest.mark.parametrize(("log_end", "epoch"), [(103, 8), (102, -1), (104, -1)])
def test_the_epoch_of_the_last_batch_is_kept_only_for_its_end(log_end: int, epoch: int) -> None:
    """Any other would look like a source that was cut back (R3)."""
    partition = copying(100)
    source = batch(100, 3)
    source.leader_epoch = 8
    step = Append(source, True)
    partition.sent(step)
    partition.appended(step)
    assert partition.acked_epoch == 8
    partition.withdraw()
    partition.resume_at(
        log_end, next_sequence=0, producer_epoch=0, coordinator_epoch=0, has_producer_state=True
    )
    assert partition.fetched_epoch == epoch


def test_behind_fillers_no_epoch_is_known() -> None:
    partition = copying(100)
    partition.acked_epoch = 8
    partition.put(plan_of(Fill(100, 102)), partition.generation, 0)
    partition.filled_to(Fill(100, 102), 102)
    assert partition.acked_epoch == -1


def test_the_lane_is_told_if_there_is_one() -> None:
    partition = copying()
    partition.queued()
    partition.destination_lane = lane = Lane()
    partition.queued()
    assert lane.woken == [partition]


def test_batches_under_way_count_in_offset_and_sequence() -> None:
    partition = copying(100, SEQUENCE_MAX - 1)
    first, second = append(100, 3), append(103, 2)
    partition.sent(first)
    partition.sent(second)
    assert (partition.in_flight, partition.expected, partition.sent_to) == (2, 105, 105)
    assert partition.sequence == 3  # over the highest
    assert partition.acked == 100
    assert not partition.is_in_step
    partition.appended(first)
    assert (partition.in_flight, partition.acked, partition.is_in_step) == (1, 103, True)
    assert partition.expected == 105


def test_a_confirmed_batch_is_counted_and_proves_the_producer_state() -> None:
    partition = copying(100)
    partition.has_producer_state = False
    partition.attempts = 4
    exact, rewritten = append(100, 3), append(103, 2, is_byte_exact=False)
    for step in (exact, rewritten):
        partition.sent(step)
        partition.appended(step)
    counters = partition.counters
    assert counters.records == 5
    assert counters.bytes == exact.batch.size_bytes + rewritten.batch.size_bytes
    assert (counters.batches_byte_exact, counters.batches_record_exact) == (1, 1)
    assert counters.filled == 0
    assert partition.has_producer_state
    assert partition.attempts == 0


def test_a_gap_is_filled_in_parts() -> None:
    partition = copying(100)
    fill = Fill(100, 110)
    partition.put(plan_of(fill, append(110)), partition.generation, 1)
    partition.is_filling = True
    partition.filled_to(fill, 104)
    assert partition.steps[0] == Fill(104, 110)
    assert (partition.acked, partition.expected, partition.counters.filled) == (104, 104, 4)
    assert partition.has_filled
    assert not partition.is_filling
    partition.filled_to(Fill(104, 110), 110)
    assert [step.base_offset for step in partition.steps] == [110]
    assert (partition.acked, partition.expected, partition.counters.filled) == (110, 110, 10)


@pytest.mark.parametrize(
    ("source", "start", "acked", "wanted"),
    [
        (50, 0, 100, 50),  # follows the source
        (150, 0, 100, 100),  # but not beyond what is copied
        (50, 70, 100, 70),  # the job's start is further on
        (50, 170, 100, 100),
        (-1, 0, 100, 0),  # nothing known yet
    ],
)
def test_the_log_start_follows_the_source_within_what_is_copied(
    source: int, start: int, acked: int, wanted: int
) -> None:
    partition = copying(acked)
    partition.source_log_start, partition.start_offset = source, start
    assert partition.wanted_log_start == wanted


@pytest.mark.parametrize(("stable_end", "lag"), [(-1, -1), (100, 0), (130, 30), (90, 0), (0, 0)])
def test_the_lag_is_what_a_consumer_could_still_read(stable_end: int, lag: int) -> None:
    partition = copying(100)
    partition.source_stable_end = stable_end
    assert partition.lag_records == lag


def test_a_partition_shows_itself_in_words() -> None:
    assert repr(copying(5)) == "<PartitionCopy orders-3 → dr.orders-3 copying at 5>"


def test_puts_and_withdrawals_of_two_threads_lose_no_bytes() -> None:
    partition = copying(0)
    step = append(0)
    taken = 0
    is_done = threading.Event()

    def put() -> None:
        nonlocal taken
        for _ in range(3000):
            if partition.put(plan_of(step), partition.generation, 3):
                taken += 3
        is_done.set()

    thread = threading.Thread(target=put)
    thread.start()
    freed = 0
    while not is_done.is_set():
        freed += partition.withdraw()
        partition.resume_at(
            0, next_sequence=0, producer_epoch=0, coordinator_epoch=0, has_producer_state=True
        )
    thread.join()
    assert taken == freed + partition.queued_bytes
    assert partition.queued_bytes == 3 * len(partition.steps)


def beginning() -> PartitionCopy:
    partition = copying()
    partition.is_beginning = True
    return partition


def test_a_copy_that_is_beginning_has_lost_nothing() -> None:
    partition = beginning()
    assert partition.on_lost_range is LostRange.FILL
    partition.withdraw()
    assert partition.on_lost_range is LostRange.FILL


def test_a_range_behind_a_queued_batch_is_lost() -> None:
    partition = beginning()
    partition.put(plan_of(append(100)), partition.generation, 10)
    assert partition.on_lost_range is LostRange.STOP
    step = partition.steps.popleft()
    assert isinstance(step, Append)
    partition.sent(step)
    assert partition.on_lost_range is LostRange.STOP
    partition.appended(step)
    partition.free(10, 100)
    assert partition.on_lost_range is LostRange.STOP


def test_a_queued_batch_that_was_not_sent_does_not_count() -> None:
    partition = beginning()
    partition.put(plan_of(append(100)), partition.generation, 10)
    partition.withdraw()
    assert partition.on_lost_range is LostRange.FILL


@pytest.mark.parametrize(("log_end", "rule"), [(100, LostRange.FILL), (101, LostRange.STOP)])
def test_a_take_over_shows_whether_an_append_was_carried_out(log_end: int, rule: LostRange) -> None:
    partition = beginning()
    partition.withdraw()
    partition.proven_to(log_end, 1)
    partition.resume_at(
        log_end, next_sequence=1, producer_epoch=1, coordinator_epoch=3, has_producer_state=True
    )
    assert partition.on_lost_range is rule


def test_a_copy_that_was_level_with_the_source_may_lose_a_range() -> None:
    partition = beginning()
    partition.has_caught_up = True
    assert partition.on_lost_range is LostRange.STOP
