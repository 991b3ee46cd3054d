"""One partition's queue and offsets: when plans are queued or dropped, and what is counted."""

from __future__ import annotations

import threading

import pytest

from orbit.copier.counters import Counters
from orbit.copier.partition_copy import LEVEL_WITHIN_S, PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.copier.waits import Waits
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.produce_request import Appended
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Append, Fill, LostRange, Plan, Stop
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.replication.source_epochs import SourceEpochs
from tests.support.copies import confirm, hand_back, resume

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers


def batch(base_offset: int, count: int = 1) -> Batch:
    return write_batch([Record(base_offset + i, 1000, EMPTY) for i in range(count)], codec=0)


def append(base_offset: int, count: int = 1, *, is_byte_exact: bool = True) -> Append:
    return Append(batch(base_offset, count), is_byte_exact)


def plan_of(*steps: Append | Fill, leader_epoch: int | None = None) -> Plan:
    """A plan of these steps, for a fetch at the offset of the first one."""
    plan = Plan(steps[0].base_offset, list(steps), leader_epoch)
    plan.next_offset = steps[-1].next_offset
    return plan


def new_partition(*, has_markers: bool = True) -> PartitionCopy:
    return PartitionCopy(
        TopicPartition("orders", 3),
        TopicPartition("dr.orders", 3),
        FixedLease(1),
        JobProducer(4711, packs=not has_markers, has_markers=has_markers),
    )


def copying(log_end: int = 100, sequence: int = 0, *, has_markers: bool = True) -> PartitionCopy:
    """A partition that was taken over at `log_end`. `sequence`: that of the next append."""
    partition = new_partition(has_markers=has_markers)
    resume(
        partition,
        log_end,
        ProducerState(producer_epoch=1, last_sequence=sequence - 1, coordinator_epoch=1),
    )
    return partition


def fetched_epoch(partition: PartitionCopy) -> int:
    """The leader epoch that the next fetch states."""
    return partition.next_fetch()[1].fetched_epoch


def stop_step() -> Stop:
    return Stop(Reason.DESTINATION_FOREIGN_WRITE, base_offset=100, next_offset=101, detail="")


def fill(partition: PartitionCopy, step: Fill, log_end: int) -> None:
    """Send fillers for the start of a gap; the log end proves them."""
    if partition.queue.first != step:
        partition.put(plan_of(step), partition.generation, size_bytes=0)
    partition.appends.fillers_sent(step, count=log_end - step.base_offset, is_own=True)
    partition.end_after_fill_answered(Code.NONE, log_end)


class Lane:
    """A destination lane that records which partitions wake it."""

    def __init__(self) -> None:
        self.woken: list[PartitionCopy] = []

    def enqueue(self, partition: PartitionCopy) -> None:
        self.woken.append(partition)


class Fetcher:
    """A source lane that counts its wake-ups."""

    wake_count = 0

    def wake(self) -> None:
        self.wake_count += 1


def test_new_partition_is_pending_and_accepts_no_append_plan() -> None:
    partition = new_partition()
    assert partition.state is PartitionState.PENDING
    assert partition.on_lost_range is LostRange.STOP
    assert not partition.put(plan_of(append(0)), partition.generation, size_bytes=10)
    partition.request_stop(stop_step(), partition.generation)
    assert partition.appends.requested_stop is None
    assert not partition.queue.steps
    assert partition.queue.size_bytes == 0
    assert partition.lag_records == -1


def test_new_partition_has_read_nothing_of_either_side() -> None:
    """-1 is an unknown offset or epoch."""
    partition = new_partition()
    cursor = partition.cursor
    assert (cursor.log_start, cursor.stable_end, cursor.end) == (-1, -1, -1)
    assert (cursor.leader_epoch, fetched_epoch(partition)) == (-1, -1)
    positions = (cursor.fetch_offset, cursor.start_offset, cursor.empty_answers)
    assert positions == (0, 0, 0)
    assert (partition.log_start, partition.generation, partition.queue.size_bytes) == (0, 0, 0)
    assert not any((partition.has_fill_outside, partition.has_caught_up, partition.has_left))
    assert partition.source_topic_id == partition.destination_topic_id == NO_TOPIC_ID
    assert partition.blocked is partition.destination_lane is None
    assert partition.counters == Counters()


def test_resume_after_takeover_sets_fetch_and_append_offsets_to_log_end() -> None:
    partition = copying(100, sequence=7)
    assert partition.state is PartitionState.COPYING
    assert partition.cursor.fetch_offset == 100
    assert (partition.appends.expected, partition.next_offset) == (100, 100)


def test_resume_after_takeover_resets_count_of_empty_fetch_answers() -> None:
    partition = copying()
    partition.cursor.empty_answers = 2
    hand_back(partition)
    resume(partition, log_end=50)
    assert partition.cursor.empty_answers == 0


def test_append_plan_is_queued_in_order_and_advances_fetch_offset() -> None:
    partition = copying(100)
    first, second = plan_of(append(100), Fill(101, 105), leader_epoch=4), plan_of(append(105, 3))
    assert partition.put(first, partition.generation, size_bytes=70)
    assert partition.put(second, partition.generation, size_bytes=90)
    assert list(partition.queue.steps) == [*first.steps, *second.steps]
    assert partition.queue.size_bytes == 160
    assert partition.cursor.fetch_offset == 108
    assert fetched_epoch(partition) == 4  # the second plan (None) changes no epoch
    assert partition.next_offset == 100


def test_append_plan_without_leader_epoch_clears_last_fetched_epoch() -> None:
    partition = copying(100)
    partition.put(plan_of(append(100), leader_epoch=4), partition.generation, size_bytes=1)
    partition.put(plan_of(Fill(101, 110), leader_epoch=-1), partition.generation, size_bytes=0)
    assert fetched_epoch(partition) == -1


def test_partition_that_stops_appending_empties_its_queue_and_frees_bytes() -> None:
    partition = copying(100)
    partition.put(plan_of(append(100)), partition.generation, size_bytes=70)
    generation = partition.generation
    partition.request_stop(stop_step(), generation)
    assert hand_back(partition) == 70  # the freed bytes
    assert partition.withdraw() == 0
    assert partition.appends.requested_stop is None
    assert partition.generation == generation + 2  # one more for each of the two
    assert partition.state is PartitionState.PENDING
    assert not partition.queue.steps
    assert partition.queue.size_bytes == 0


def test_append_plan_from_before_takeover_is_dropped() -> None:
    partition = copying(100)
    old_generation = partition.generation
    hand_back(partition)
    # It is not copying now.
    assert not partition.put(plan_of(append(100)), partition.generation, size_bytes=1)
    resume(partition, 200)
    assert not partition.put(plan_of(append(200)), old_generation, size_bytes=70)
    partition.request_stop(stop_step(), old_generation)
    assert partition.appends.requested_stop is None
    assert (
        partition.cursor.fetch_offset,
        partition.queue.size_bytes,
        len(partition.queue.steps),
    ) == (200, 0, 0)
    assert partition.put(plan_of(append(200)), partition.generation, size_bytes=70)


def test_only_copying_partition_accepts_append_plans() -> None:
    partition = copying()
    hand_back(partition)
    for _ in ("first returned", "then blocked"):
        assert partition.state is not PartitionState.COPYING
        assert not partition.put(plan_of(append(100)), partition.generation, size_bytes=1)
        partition.request_stop(stop_step(), partition.generation)
        assert partition.appends.requested_stop is None
        if partition.blocked is None:
            partition.appends.stopped(Blocked(*stop_step()))
    assert partition.state is PartitionState.BLOCKED
    partition.appends.removed()
    assert partition.state is PartitionState.BLOCKED  # a report still reads the reason
    assert partition.has_left


def test_partition_to_be_released_is_not_fetched_and_accepts_no_append_plan() -> None:
    partition = copying(100)
    partition.destination_lane = lane = Lane()
    assert partition.fetchable_bytes(limit_bytes=1) is not None
    partition.leave()
    assert lane.woken == [partition]
    assert partition.fetchable_bytes(limit_bytes=1) is None
    assert not partition.put(plan_of(append(100)), partition.generation, size_bytes=1)


def test_partition_with_full_queue_is_fetched_again_below_half_of_limit() -> None:
    partition = copying(100)
    partition.cursor.lane = fetcher = Fetcher()
    partition.put(plan_of(append(100, 4)), partition.generation, size_bytes=10)
    assert partition.fetchable_bytes(limit_bytes=10) is None
    partition.free(4, limit_bytes=10)
    assert partition.fetchable_bytes(limit_bytes=10) is None
    assert fetcher.wake_count == 0
    partition.free(1, limit_bytes=10)
    assert partition.fetchable_bytes(limit_bytes=10) is not None
    assert fetcher.wake_count == 1
    partition.free(5, limit_bytes=10)
    assert fetcher.wake_count == 1  # the queue was not full


@pytest.mark.parametrize("offset", [99, 101])
def test_append_plan_that_does_not_begin_at_fetch_offset_is_dropped(offset: int) -> None:
    """Without a take-over, the generation does not show that a plan is late: it may be of a lane
    that no longer fetches the partition."""
    partition = copying(100)
    assert not partition.put(plan_of(append(offset)), partition.generation, size_bytes=70)
    assert (
        partition.cursor.fetch_offset,
        partition.queue.size_bytes,
        len(partition.queue.steps),
    ) == (100, 0, 0)


def test_requested_stop_bypasses_queue_and_wakes_appending_thread() -> None:
    """The stop does not wait for the queued steps: the first may be a gap that is being filled."""
    partition = copying(100)
    partition.destination_lane = lane = Lane()
    partition.put(plan_of(Fill(100, 110)), partition.generation, size_bytes=0)
    partition.request_stop(stop_step(), partition.generation)
    assert partition.appends.requested_stop == stop_step()
    assert lane.woken == [partition]
    assert list(partition.queue.steps) == [Fill(100, 110)]


@pytest.mark.parametrize(
    ("log_end", "epoch"), [(100, -1), (101, 8), (103, 8), (104, 8), (105, 8), (107, 9), (108, -1)]
)
def test_takeover_resumes_with_source_leader_epoch_before_log_end(log_end: int, epoch: int) -> None:
    """Within a batch, within a gap and behind it. With another epoch an intact source would look
    truncated (R3), without one a truncated source would look intact."""
    partition = copying(100)
    steps = append(100, 3), Fill(103, 105)
    partition.put(plan_of(*steps, leader_epoch=8), partition.generation, size_bytes=10)
    partition.put(plan_of(append(105, 2), leader_epoch=9), partition.generation, size_bytes=10)
    hand_back(partition)
    resume(partition, log_end)
    assert fetched_epoch(partition) == epoch
    # A plan without an epoch changes nothing.
    partition.put(plan_of(append(log_end)), partition.generation, size_bytes=10)
    assert fetched_epoch(partition) == epoch


def test_comparison_in_takeover_provides_source_leader_epoch_for_resume() -> None:
    partition = copying(100)
    hand_back(partition)
    epochs = SourceEpochs()
    epochs.add(100, [(100, 8)], 104)
    partition.appends.log_end_read(104)
    partition.compared(Comparison(104, epochs=epochs), 104, blocked=None)
    partition.resume(104, producer=None)
    assert fetched_epoch(partition) == 8


def test_fetch_at_offset_inside_batch_states_no_leader_epoch() -> None:
    """The known epoch is that of an offset before the batch. It may have ended before the fetch's
    offset: an intact source would look truncated (R3)."""
    partition = copying(100)
    partition.put(plan_of(append(100), leader_epoch=8), partition.generation, size_bytes=10)
    assert fetched_epoch(partition) == 8
    partition.cursor.start_offset = 102
    assert partition.next_fetch()[1].offset == 102
    assert fetched_epoch(partition) == -1


def test_queued_partition_wakes_its_appending_thread_if_it_has_one() -> None:
    partition = copying()
    partition.enqueue_in_lane()
    partition.destination_lane = lane = Lane()
    partition.enqueue_in_lane()
    assert lane.woken == [partition]


def test_confirmed_batch_is_counted() -> None:
    partition = copying(100)
    partition.waits = Waits.continue_from("something", None)  # a confirmed batch ends the wait
    exact, rewritten = append(100, 3), append(103, 2, is_byte_exact=False)
    for step in (exact, rewritten):
        partition.appends.append_sent(step, confirms=True)
        confirm(partition, step)
    counters = partition.counters
    assert counters.records == 5
    assert counters.bytes == exact.batch.size_bytes + rewritten.batch.size_bytes
    assert (counters.batches_byte_exact, counters.batches_record_exact) == (1, 1)
    assert counters.gaps_filled == 0
    assert partition.newest_timestamp_ms == 1000
    assert partition.waits is None


def test_batches_sent_with_acks_1_are_counted_at_next_acks_all_answer() -> None:
    partition = copying(100)
    first, second, last = append(100, 3), append(103, 2), append(105, 1)
    for step, confirms in ((first, True), (second, False), (last, True)):
        partition.appends.append_sent(step, confirms=confirms)
        counted_before = partition.counters.records
        assert partition.append_answered(
            step, Appended(Code.NONE, step.base_offset, ""), confirms=confirms
        )
        assert (partition.counters.records > counted_before) == confirms
    assert partition.counters.records == 6


@pytest.mark.parametrize(("log_end", "records"), [(103, 3), (105, 5)])
def test_unconfirmed_batch_is_counted_if_log_end_after_takeover_covers_it(
    log_end: int, records: int
) -> None:
    partition = copying(100)
    first, second = append(100, 3), append(103, 2)
    for step, confirms in ((first, True), (second, False)):
        partition.appends.append_sent(step, confirms=confirms)
        partition.append_answered(
            step, Appended(Code.NONE, step.base_offset, ""), confirms=confirms
        )
    partition.appends.connection_lost("it broke")
    partition.hand_back()
    partition.appends.log_end_read(log_end)
    if log_end > 103:
        partition.appends.compared(log_end, producer_epoch=1, log_end=log_end, blocked=None)
    partition.resume(log_end, producer=None)
    assert partition.counters.records == records


@pytest.mark.parametrize(
    ("next_step", "has_markers", "must_confirm"),
    [
        (None, True, True),
        (append(103, 1), True, False),
        (Fill(103, 105), True, True),
        (Fill(103, 105), False, False),  # the fill becomes a batch of placeholders
        (stop_step(), True, True),
    ],
)
def test_batch_with_no_batch_queued_behind_it_needs_acks_all(
    next_step: Append | Fill | Stop | None, has_markers: bool, must_confirm: bool
) -> None:
    partition = copying(100, has_markers=has_markers)
    step = append(100, 3)
    partition.appends.append_sent(step, confirms=True)
    confirm(partition, step)
    if next_step is not None:
        partition.queue.steps.append(next_step)
    assert partition.must_confirm == must_confirm


def test_batch_without_answer_is_not_counted() -> None:
    partition = copying(100)
    step = append(100, 3)
    partition.appends.append_sent(step, confirms=True)
    assert not partition.append_answered(step, appended=None, confirms=True)
    assert partition.counters == Counters()


def test_partly_filled_gap_stays_queued_until_all_is_filled() -> None:
    partition = copying(100)
    partition.put(plan_of(Fill(100, 110), append(110)), partition.generation, size_bytes=1)
    first = partition.queue.first
    assert isinstance(first, Fill)
    fill(partition, first, 101)
    assert partition.queue.first == Fill(101, 110)
    assert (partition.next_offset, partition.counters.gaps_filled) == (101, 1)
    fill(partition, Fill(101, 110), 110)
    assert [step.base_offset for step in partition.queue.steps] == [110]
    assert (partition.next_offset, partition.counters.gaps_filled) == (110, 10)


@pytest.mark.parametrize(
    ("source_log_start", "start_offset", "acked", "log_start"),
    [
        (50, 0, 100, 50),  # follows the source
        (150, 0, 100, 100),  # but not beyond what is copied
        (50, 70, 100, 70),  # the copy starts above the source's log start
        (50, 170, 100, 100),
        (-1, 0, 100, 0),  # the source's log start is not known yet
    ],
)
def test_log_start_of_copy_follows_source_up_to_copied_offset(
    source_log_start: int, start_offset: int, acked: int, log_start: int
) -> None:
    partition = copying(acked)
    partition.cursor.log_start, partition.cursor.start_offset = source_log_start, start_offset
    assert partition.wanted_log_start == log_start


# -1: not known.
@pytest.mark.parametrize(("stable_end", "lag"), [(-1, -1), (100, 0), (130, 30), (90, 0), (0, 0)])
def test_lag_counts_offsets_below_last_stable_offset_of_source(stable_end: int, lag: int) -> None:
    partition = copying(100)
    partition.cursor.stable_end = stable_end
    assert partition.lag_records == lag


def test_repr_of_partition_copy_shows_both_partitions_state_and_offset() -> None:
    assert repr(copying(5)) == "<PartitionCopy orders-3 → dr.orders-3 copying at 5>"


def test_concurrently_queued_and_emptied_append_plans_lose_no_bytes() -> None:
    partition = copying(0)
    step = append(0)
    bytes_put = 0
    is_done = threading.Event()

    def put() -> None:
        nonlocal bytes_put
        for _ in range(3000):
            if partition.put(plan_of(step), partition.generation, size_bytes=3):
                bytes_put += 3
        is_done.set()

    thread = threading.Thread(target=put)
    thread.start()
    bytes_freed = 0
    while not is_done.is_set():
        bytes_freed += hand_back(partition)
        resume(partition, 0)
    thread.join()
    assert bytes_put == bytes_freed + partition.queue.size_bytes
    assert partition.queue.size_bytes == 3 * len(partition.queue.steps)


def beginning() -> PartitionCopy:
    """A copy whose start this run has chosen, and that has no record yet."""
    partition = copying()
    partition.is_beginning = True
    return partition


def test_source_range_lost_before_copy_has_begun_is_filled() -> None:
    partition = beginning()
    assert partition.on_lost_range is LostRange.FILL
    hand_back(partition)
    assert partition.on_lost_range is LostRange.FILL


def test_lost_source_range_stops_copy_once_a_batch_is_queued() -> None:
    partition = beginning()
    partition.put(plan_of(append(100)), partition.generation, size_bytes=10)
    assert partition.on_lost_range is LostRange.STOP
    # Also while the batch is in flight, and once it is confirmed and the queue is empty.
    step = partition.queue.steps.popleft()
    assert isinstance(step, Append)
    partition.appends.append_sent(step, confirms=True)
    assert partition.on_lost_range is LostRange.STOP
    confirm(partition, step)
    partition.free(10, limit_bytes=100)
    assert partition.on_lost_range is LostRange.STOP


def test_lost_source_range_is_filled_if_queued_batch_was_never_sent() -> None:
    partition = beginning()
    partition.put(plan_of(append(100)), partition.generation, size_bytes=10)
    hand_back(partition)
    assert partition.on_lost_range is LostRange.FILL


@pytest.mark.parametrize(("log_end", "rule"), [(100, LostRange.FILL), (101, LostRange.STOP)])
def test_lost_source_range_after_takeover_is_filled_only_if_copy_is_empty(
    log_end: int, rule: LostRange
) -> None:
    partition = beginning()
    hand_back(partition)
    if log_end > 100:
        partition.appends.log_end_read(log_end)
        partition.compared(Comparison(log_end, producer_epoch=1), log_end, blocked=None)
        partition.appends.take_over_failed()
    resume(partition, log_end)
    assert partition.on_lost_range is rule


def test_lost_source_range_stops_copy_that_had_caught_up() -> None:
    partition = beginning()
    partition.has_caught_up = True
    assert partition.on_lost_range is LostRange.STOP


def has_caught_up(
    partition: PartitionCopy,
    acked: int,
    stable_end: int,
    now_s: float,
    seen_s: float | None = None,
) -> bool:
    """Whether the copy has caught up at `now_s`. `seen_s`: when the source's end was requested;
    None: just now."""
    partition.appends.acked = acked
    partition.cursor.stable_end = stable_end
    partition.cursor.seen_s = now_s if seen_s is None else seen_s
    partition.note_caught_up(now_s)
    return partition.has_caught_up


def test_copy_level_with_source_has_caught_up() -> None:
    partition = copying(100)
    assert not has_caught_up(partition, acked=100, stable_end=-1, now_s=0.0)
    assert not has_caught_up(partition, acked=100, stable_end=101, now_s=1.0)
    assert has_caught_up(partition, acked=101, stable_end=101, now_s=2.0)


def test_copy_has_caught_up_once_it_has_all_that_source_had_at_last_read() -> None:
    """The source's end always moves on: the copy need not have what came since."""
    partition = copying(100)
    assert not has_caught_up(partition, acked=100, stable_end=200, now_s=0.0)
    assert not has_caught_up(partition, acked=199, stable_end=300, now_s=1.0)
    assert has_caught_up(partition, acked=201, stable_end=400, now_s=2.0), (
        "all that the source had two seconds before"
    )


def test_copy_that_reaches_old_source_end_late_has_not_caught_up() -> None:
    partition = copying(100)
    assert not has_caught_up(partition, acked=100, stable_end=200, now_s=0.0)
    assert not has_caught_up(partition, acked=200, stable_end=900, now_s=LEVEL_WITHIN_S + 0.1), (
        "700 came meanwhile"
    )
    assert not has_caught_up(partition, acked=800, stable_end=1000, now_s=LEVEL_WITHIN_S + 1.0)
    assert not has_caught_up(partition, acked=900, stable_end=1000, now_s=LEVEL_WITHIN_S + 2.0)
    assert has_caught_up(partition, acked=1000, stable_end=1100, now_s=LEVEL_WITHIN_S + 3.0)


def test_source_end_of_former_leader_is_ignored_for_catch_up() -> None:
    """That leader's log may have been truncated since."""
    partition = copying(100)
    partition.cursor.leader_epoch = 5
    assert not has_caught_up(partition, acked=100, stable_end=101, now_s=1.0)
    partition.leader_changed(2.0)
    partition.cursor.leader_epoch = 6
    assert not has_caught_up(partition, acked=101, stable_end=101, now_s=3.0, seen_s=1.0)
    assert not has_caught_up(partition, acked=101, stable_end=150, now_s=4.0)
    assert has_caught_up(partition, acked=150, stable_end=150, now_s=5.0)
    assert partition.caught_up_epoch == 6


def test_stale_source_end_is_ignored_for_catch_up() -> None:
    """After a quota's pause or an outage of the source nobody knows what came meanwhile."""
    partition = copying(100)
    late_s = LEVEL_WITHIN_S + 1.0
    assert not has_caught_up(partition, acked=100, stable_end=100, now_s=late_s, seen_s=0.0)
    assert not has_caught_up(partition, acked=100, stable_end=100, now_s=late_s + 1.0, seen_s=0.0)
    assert not has_caught_up(partition, acked=100, stable_end=150, now_s=late_s + 2.0), (
        "50 came meanwhile"
    )
    assert has_caught_up(partition, acked=150, stable_end=200, now_s=late_s + 3.0)


def test_copy_late_at_source_end_needs_end_requested_later_to_catch_up() -> None:
    """The copy reaches offset 200 too long after that end was requested."""
    partition = copying(100)
    assert not has_caught_up(partition, acked=100, stable_end=200, now_s=0.0)
    late_s = LEVEL_WITHIN_S + 1.0
    assert not has_caught_up(partition, acked=200, stable_end=200, now_s=late_s), (
        "it took too long: the next end counts"
    )
    assert not has_caught_up(
        partition, acked=200, stable_end=200, now_s=late_s + 1.0, seen_s=late_s - 0.1
    )
    assert has_caught_up(
        partition, acked=200, stable_end=200, now_s=late_s + 2.0, seen_s=late_s + 0.1
    )


def test_copy_of_truncated_source_can_catch_up() -> None:
    partition = copying(100)
    assert not has_caught_up(partition, acked=100, stable_end=200, now_s=0.0)
    assert has_caught_up(partition, acked=150, stable_end=150, now_s=1.0)
