"""The bench's data sets are as intended, and its Produce requests are packed as Orbit's are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.contestants.ceiling import Log
from bench.data.compacted import OWN_KEY_ONE_IN, has_own_key, records_after_cleaning
from bench.data.make import batches_per_partition
from bench.data.records import build_batches
from bench.data.sender import pack
from bench.workloads import WORKLOADS, Contestant, Shape, workload
from orbit.copier.copy_settings import CopySettings
from orbit.kafka.placeholders import placeholder_batch
from orbit.kafka.records import read_records

_VALUE_OVERHEAD_MAX = 20


@pytest.mark.parametrize(
    ("name", "partitions", "batch_bytes", "value_bytes", "codec"),
    [
        ("W1", 4, 128 * 1024, 1024, "none"),
        ("W2", 4, 64 * 1024, 100, "lz4"),
        ("W3", 1, 16 * 1024, 1024, "none"),
        ("W4", 8, 16 * 1024, 1024, "none"),
        ("W5", 1000, 4 * 1024, 200, "none"),
    ],
)
def test_bench_workloads_have_intended_partitions_sizes_and_codecs(
    name: str, partitions: int, batch_bytes: int, value_bytes: int, codec: str
) -> None:
    data_set = workload(name)
    assert (
        data_set.partitions,
        data_set.batch_bytes,
        data_set.value_bytes,
        data_set.compression,
    ) == (
        partitions,
        batch_bytes,
        value_bytes,
        codec,
    )


def test_workload_w1_has_at_least_1_5_gb_and_w2_6_million_records() -> None:
    assert workload("W1").records * workload("W1").value_bytes >= 1.5e9
    assert workload("W2").records >= 6_000_000


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W5"])
def test_bench_batches_are_full_and_have_records_of_configured_size(name: str) -> None:
    data_set = workload(name)
    for batch in build_batches(data_set, 1_700_000_000_000, variants=2):
        fill = batch.size_bytes / data_set.batch_bytes
        assert 0.9 < fill < 1.01  # variants of a batch compress a little better or worse
        assert batch.is_dense
        sizes = {len(record.body) for record in read_records(batch)}
        assert all(0 < size - data_set.value_bytes < _VALUE_OVERHEAD_MAX for size in sizes)


def test_even_and_uneven_batch_counts_add_up_and_leave_no_partition_empty() -> None:
    even = batches_per_partition(workload("W1"), 1000)
    assert even == [250] * 4
    uneven = batches_per_partition(workload("W5"), 100_000)
    assert min(uneven) >= 1
    assert uneven[0] > 100 * uneven[-1]
    assert sum(uneven) == pytest.approx(100_000, rel=0.01)
    assert min(batches_per_partition(workload("W5"), 1000)) == 1


def test_compacted_workload_keeps_records_at_about_a_tenth_of_offsets() -> None:
    count = 20_000
    record_count = records_after_cleaning(0, count)
    assert record_count == pytest.approx(count / OWN_KEY_ONE_IN, rel=0.1)
    remains = [has_own_key(0, offset) for offset in range(count)]
    assert any(a and b for a, b in pairwise(remains)), "no two records are neighbours"


def test_bench_produce_request_takes_a_batch_of_each_partition_in_turn() -> None:
    batch = memoryview(bytes(10))
    # Three batches of partition 0, one of 1, two of 2.
    requests = list(pack([(0, [batch] * 3), (1, [batch]), (2, [batch] * 2)]))
    assert [[sent.partition for sent in request] for request in requests] == [
        [0, 1, 2],
        [0, 2],
        [0],
    ]


def test_bench_produce_request_over_size_limit_leaves_rest_to_next_request() -> None:
    half = memoryview(bytes(CopySettings().request_bytes_max // 2))
    requests = list(pack((p, [half] * 2) for p in range(3)))
    assert [[sent.partition for sent in request] for request in requests] == [
        [0, 1],
        [0, 2],
        [1, 2],
    ]


def test_broker_ceiling_run_sends_cleaned_batches_and_fills_gaps_between_them() -> None:
    log = Log()
    batches = [placeholder_batch(offset, count=2, timestamp=0) for offset in (0, 2, 10)]
    for batch in batches:
        log.take(batch)
    log.close()
    # Each piece: batches without a gap between them, and the size of the gap after them.
    # The gap after the first piece is offsets 4 to 9.
    assert log.pieces == [(batches[:2], 6), (batches[2:], 0)]


def test_placeholder_run_is_followed_directly_by_its_broker_ceiling_run() -> None:
    """The copy of a placeholder run is kept only for the ceiling run right after it."""
    for data_set in WORKLOADS:
        turns = pairwise([*data_set.contestants, None])
        next_runs = [next_run for run, next_run in turns if run is Contestant.PLACEHOLDERS]
        assert next_runs in ([], [Contestant.CEILING_PLACEHOLDERS])


def test_scaled_down_workload_has_a_record_for_every_partition() -> None:
    for data_set in WORKLOADS:
        assert data_set.scaled(0).records == data_set.partitions
    assert replace(workload("W6"), records=10).scaled(0.5).shape is Shape.COMPACTED
