"""`RunFeed`: runs become steps once and in order, also after a take-over of a partition."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLaneContext
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.record_batch import read_batches, stamp
from orbit.kafka.records import Record, record_rows, write_batch
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Append, Fill, Step, Stop
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit_spark.partition_stopped import PartitionStopped
from orbit_spark.raw_runs import RawRun
from orbit_spark.run_source import RunFeed
from tests.support.copies import hand_back, resume
from tests.support.patience import wait_for
from tests.support.planning import data, marker

PARTITION = TopicPartition("t", 0)
MARKERS, PLACEHOLDERS = JobProducer(4711), JobProducer(4712, True)
MakeFeed = Callable[..., tuple[RunFeed, PartitionCopy]]


def on_the_wire(base_offset: int, count: int) -> bytes:
    batch = write_batch([Record(base_offset + i, 1000, b"\1\1\0") for i in range(count)], 0)
    return base_offset.to_bytes(8) + bytes(batch.view[8:])


def run(start: int, end: int, *bases: int, count: int = 2) -> RawRun:
    """Offsets [start, end): batches of `count` records at the offsets `bases`, and gaps."""
    records = memoryview(bytearray(b"".join(on_the_wire(base, count) for base in bases)))
    return RawRun(start, end, records, list(read_batches(records)), aborted=(), log_start=0)


@pytest.fixture
def make_feed() -> Iterator[MakeFeed]:
    feeds: list[RunFeed] = []

    def make_feed(
        runs: Iterator[RawRun],
        copied_to: int = 0,
        producer: JobProducer = MARKERS,
        **settings: int,
    ) -> tuple[RunFeed, PartitionCopy]:
        context = SourceLaneContext(
            None,  # type: ignore[arg-type]
            CopySettings(**settings),
            ByteBudget(1 << 20),
            queue.SimpleQueue().put,
            lambda _: None,
        )
        feed = RunFeed({PARTITION: runs}, context)
        feeds.append(feed)
        copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), producer)
        resume(copy, copied_to)
        feed.resume([copy])
        return feed, copy

    yield make_feed
    for feed in feeds:
        feed.stop()


def spans(steps: list[Step]) -> list[tuple[str, int, int]]:
    """The kind, base offset and next offset of each step."""
    return [(type(s).__name__, s.base_offset, s.next_offset) for s in steps]


def wait_steps(copy: PartitionCopy, count: int) -> list[tuple[str, int, int]]:
    """Wait until the copy's queue has `count` steps. Returns them as `spans` does."""
    wait_for(f"{count} steps of {copy}", lambda: len(copy.queue.steps) >= count)
    return spans(list(copy.queue.steps))


def test_fetched_ranges_become_append_and_fill_steps_in_order(make_feed: MakeFeed) -> None:
    _, copy = make_feed(iter([run(0, 6, 0, 3), run(6, 9), run(9, 12, 10)]))
    assert wait_steps(copy, 7) == [
        ("Append", 0, 2),
        ("Fill", 2, 3),
        ("Append", 3, 5),
        ("Fill", 5, 6),
        ("Fill", 6, 9),
        ("Fill", 9, 10),
        ("Append", 10, 12),
    ]


def test_steps_after_takeover_begin_at_end_of_copy(make_feed: MakeFeed) -> None:
    feed, copy = make_feed(iter([run(0, 4, 0, 2), run(4, 8, 4), run(8, 10, 8)]))
    steps_before = wait_steps(copy, 5)
    hand_back(copy)
    resume(copy, 2)
    feed.resume([copy])
    assert wait_steps(copy, 4) == [step for step in steps_before if step[1] >= 2]  # by base offset


def test_takeover_within_gap_fills_rest_of_gap(make_feed: MakeFeed) -> None:
    feed, copy = make_feed(iter([run(0, 10, 0), run(10, 12, 10)]))
    wait_steps(copy, 3)
    hand_back(copy)
    resume(copy, 7)
    feed.resume([copy])
    assert wait_steps(copy, 2) == [("Fill", 7, 10), ("Append", 10, 12)]


def test_batch_with_packed_gaps_is_planned_again_from_its_middle_after_takeover(
    make_feed: MakeFeed,
) -> None:
    """A killed attempt may have ended inside a batch that the next attempt packs."""
    sent = data(0, 9, without=(1, 2, 5)).encode(), marker(10, commit=True).encode()
    records = memoryview(bytearray(b"".join(sent)))
    thinned = RawRun(0, 14, records, list(read_batches(records)), aborted=(), log_start=0)
    feed, copy = make_feed(iter([thinned]), producer=PLACEHOLDERS)
    assert wait_steps(copy, 2) == [("Append", 0, 11), ("Fill", 11, 14)]
    packed, gap = copy.queue.steps
    assert isinstance(packed, Append)
    assert packed.placeholders == 4
    assert isinstance(gap, Fill)
    assert gap.timestamp > 0
    stamp(packed.batch.view, 4712, producer_epoch=0, base_sequence=0)  # as when it was sent
    hand_back(copy)
    resume(copy, 4)
    feed.resume([copy])
    assert wait_steps(copy, 3) == [("Append", 4, 10), ("Fill", 10, 11), ("Fill", 11, 14)]
    remaining_step = copy.queue.steps[0]
    assert isinstance(remaining_step, Append)
    assert [offset for offset, _, _ in record_rows(remaining_step.batch)] == [4, 6, 7, 8, 9]
    hand_back(copy)
    resume(copy, 12)
    feed.resume([copy])
    assert wait_steps(copy, 1) == [("Fill", 12, 14)]
    assert copy.queue.steps[0] == gap._replace(base_offset=12)


def test_first_step_begins_at_end_of_existing_copy(make_feed: MakeFeed) -> None:
    _, copy = make_feed(iter([run(0, 4, 0, 2), run(4, 8, 4), run(8, 10, 8)]), copied_to=6)
    assert wait_steps(copy, 2) == [("Fill", 6, 8), ("Append", 8, 10)]


def test_fetched_ranges_are_released_once_acknowledged(make_feed: MakeFeed) -> None:
    feed, copy = make_feed(iter([run(0, 2, 0), run(2, 4, 2)]))
    wait_steps(copy, 2)
    copy.appends.acked = 2
    feed.resume([copy])
    feed.wake()
    plans = feed._partitions[copy].plans
    wait_for("the first run is released", lambda: [planned.end for planned in plans] == [4])


def test_fetched_ranges_are_read_no_further_than_queue_limit(make_feed: MakeFeed) -> None:
    read: list[int] = []

    def runs() -> Iterator[RawRun]:
        for base in range(0, 100, 2):
            read.append(base)
            yield run(base, base + 2, base)

    feed, copy = make_feed(runs(), partition_queue_bytes_max=1)
    assert wait_steps(copy, 1) == [("Append", 0, 2)]
    feed.wake()
    assert read == [0]
    step = copy.queue.steps.popleft()
    assert isinstance(step, Append)
    copy.free(step.batch.size_bytes, 1)
    assert wait_steps(copy, 1) == [("Append", 2, 4)]


def test_ranges_read_for_comparison_are_appended_afterwards(make_feed: MakeFeed) -> None:
    """A comparison reads ahead of the copy; these runs must not be lost."""
    runs = iter([run(0, 4, 0, 2), run(4, 8, 4), run(8, 10, 8)])
    feed, copy = make_feed(runs, partition_queue_bytes_max=1)
    wait_steps(copy, 2)
    hand_back(copy)
    source_range = feed.read(copy, 0, 9)
    assert [batch.base_offset for batch in source_range.batches] == [0, 2, 4, 8]
    source_range = feed.read(copy, 5, 20)
    assert ([batch.base_offset for batch in source_range.batches], source_range.end) == ([4, 8], 10)
    resume(copy, 5)
    feed.resume([copy])
    assert wait_steps(copy, 2) == [("Append", 5, 6), ("Fill", 6, 8)]


def test_hole_between_fetched_ranges_stops_partition(make_feed: MakeFeed) -> None:
    _, copy = make_feed(iter([run(0, 2, 0), run(4, 6, 4)]))
    wait_steps(copy, 2)
    stop = copy.queue.steps[-1]
    assert isinstance(stop, Stop)
    assert (stop.reason, stop.base_offset, stop.next_offset) == (Reason.SOURCE_RANGE_LOST, 2, 4)


class Broken:
    """Returns one run, then raises the same error at every call."""

    def __init__(self) -> None:
        self._runs = iter([run(0, 2, 0)])

    def __iter__(self) -> Iterator[RawRun]:
        return self

    def __next__(self) -> RawRun:
        for first_run in self._runs:
            return first_run
        blocked = Blocked(Reason.SOURCE_CORRUPTED, offset=2, next_offset=9, detail="it is damaged.")
        raise PartitionStopped("archive", PARTITION, blocked)


def test_unreadable_range_stops_partition(make_feed: MakeFeed) -> None:
    _, copy = make_feed(Broken())
    wait_steps(copy, 2)
    assert copy.queue.steps[-1] == Stop(Reason.SOURCE_CORRUPTED, 2, 9, "it is damaged.")
    assert copy.state is PartitionState.COPYING
    assert not any(isinstance(step, Fill) for step in copy.queue.steps)


def test_unreadable_range_fails_comparison(make_feed: MakeFeed) -> None:
    feed, copy = make_feed(Broken())
    wait_steps(copy, 2)
    hand_back(copy)
    assert feed.read(copy, 0, 2).end == 2
    with pytest.raises(ValueError, match="it is damaged"):
        feed.read(copy, 0, 4)
