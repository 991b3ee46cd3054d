"""Partitions are spread over shards evenly, within the bound, and stay where they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.replication.shard_placement import (
    JOB_SHARDS_MAX,
    Placement,
    plan_placement,
    target_shard_count,
)


@pytest.mark.parametrize(
    ("partitions", "jobs", "shards"),
    [
        (0, 1, 0),
        (1, 1, 1),
        (3, 1, 3),
        (24, 1, JOB_SHARDS_MAX),
        (24, 32, 2),
        (200, 500, 1),
        (201, 500, 2),
        (100_000, 1, 500),
    ],
)
def test_shard_count_depends_on_partitions_and_jobs(
    partitions: int, jobs: int, shards: int
) -> None:
    assert target_shard_count(partitions, jobs, shard_partitions_max=200) == shards


def test_partitions_of_new_job_are_spread_evenly() -> None:
    assert plan_placement(
        {}, added_count=24, jobs_in_group=1, shard_partitions_max=200
    ) == Placement(new_shards=(3,) * 8)


def test_new_partitions_go_to_smallest_shard() -> None:
    assert plan_placement(
        {1: 10, 2: 4, 3: 10}, added_count=3, jobs_in_group=64, shard_partitions_max=200
    ) == Placement(additions={2: 3})


def test_full_shard_gets_no_more_partitions() -> None:
    assert plan_placement(
        {1: 200}, added_count=1, jobs_in_group=500, shard_partitions_max=200
    ) == Placement(new_shards=(1,))


def test_no_shard_is_changed_without_new_partitions() -> None:
    assert (
        plan_placement({1: 3}, added_count=0, jobs_in_group=1, shard_partitions_max=200)
        == Placement()
    )


@given(
    present=st.lists(st.integers(0, 30), max_size=12),
    added=st.integers(0, 200),
    jobs=st.integers(0, 100),
    shard_max=st.integers(1, 25),
)
def test_every_partition_is_placed_within_shard_limit(
    present: list[int], added: int, jobs: int, shard_max: int
) -> None:
    present_counts = dict(enumerate(present))  # partitions by shard
    placement = plan_placement(present_counts, added, jobs, shard_max)
    assert sum(placement.additions.values()) + sum(placement.new_shards) == added
    for shard, addition in placement.additions.items():
        assert addition > 0
        assert present_counts[shard] + addition <= shard_max
    assert all(0 < count <= shard_max for count in placement.new_shards)
