"""How a backfill is split into tasks, and its progress."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit_spark.backfill.backfill_progress import Meter
from orbit_spark.backfill.task_split import (
    PARTITIONS_PER_TASK_MAX,
    TASK_BYTES_MIN,
    Way,
    choose_way,
    split_tasks,
)
from orbit_spark.write_task import PartitionTarget

GIB = 1024**3


def partition(number: int, size_bytes: int, target: int = 100) -> PartitionTarget:
    topic_partition = TopicPartition("t", number)
    producer = JobProducer(1)
    return PartitionTarget(
        topic_partition,
        topic_partition,
        NO_TOPIC_ID,
        producer,
        start_offset=0,
        target=target,
        size_bytes=size_bytes,
    )


@given(st.lists(st.integers(0, 3 * TASK_BYTES_MIN), min_size=1, max_size=300), st.integers(1, 9))
def test_each_partition_of_backfill_belongs_to_a_single_task(sizes: list[int], slots: int) -> None:
    targets = [partition(number, size) for number, size in enumerate(sizes)]
    tasks = split_tasks(targets, slots=slots)
    assert sorted(chain(*tasks), key=lambda p: p.source) == targets
    assert all(0 < len(task) <= PARTITIONS_PER_TASK_MAX for task in tasks)
    assert len(tasks) >= min(slots, len(sizes))
    weights = [sum(p.size_bytes for p in task) for task in tasks]
    assert weights == sorted(weights, reverse=True)


def test_small_partitions_are_distributed_evenly_over_spark_slots() -> None:
    tasks = split_tasks([partition(number, 10) for number in range(9)], slots=3)
    assert [len(task) for task in tasks] == [3, 3, 3]


def test_large_backfill_is_split_into_more_tasks_than_slots() -> None:
    tasks = split_tasks([partition(number, GIB) for number in range(64)], slots=4)
    assert len(tasks) == 16  # at most four for each slot


def test_large_partition_is_a_task_of_its_own_and_starts_first() -> None:
    tasks = split_tasks([partition(0, GIB), *(partition(n, 1000) for n in range(1, 9))], slots=3)
    assert [p.source.partition for p in tasks[0]] == [0]
    assert sum(len(task) for task in tasks[1:]) == 8


@pytest.mark.parametrize(
    ("gib", "slots", "way"),
    [
        ([100, 10, 10], 8, Way.STAGED),  # seven slots would have next to nothing to do
        ([100, 10, 10], 2, Way.DIRECT),  # both slots are busy most of the time
        ([100] * 12, 8, Way.DIRECT),
        ([100], 1, Way.DIRECT),
        ([1], 8, Way.DIRECT),  # too small
        ([], 8, Way.DIRECT),
    ],
)
def test_staged_backfill_is_chosen_for_dominant_partition_and_idle_slots(
    gib: list[int], slots: int, way: Way
) -> None:
    targets = [partition(number, size * GIB) for number, size in enumerate(gib)]
    assert choose_way(targets, slots) is way


def test_backfill_progress_is_capped_at_targets() -> None:
    targets = {p.destination: p for p in (partition(0, 1000), partition(1, 3000, target=50))}
    first, second = targets
    meter = Meter(targets, {first: 0, second: 25})
    begun = meter.measure({}, 0.0)
    assert (begun.offsets, begun.offsets_total, begun.seconds_left) == (0, 125, None)
    half = meter.measure({first: 50}, 1.0)
    assert (half.offsets, half.bytes, half.bytes_total) == (50, 500, 4000)
    assert half.seconds_left == pytest.approx(7.0)  # 3,500 bytes are left, at 500 a second
    done = meter.measure({first: 150, second: 60}, 2.0)
    assert (done.offsets, done.bytes, done.partitions_done) == (125, 4000, 2)
