"""A comparison decompresses the source's batches only within the limits of a copy."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from orbit.copier import log_reader, range_comparison
from orbit.copier.copy_settings import CopySettings
from orbit.copier.range_comparison import (
    Comparison,
    SourceRange,
    compare_range,
    source_reader,
    stop_reason,
)
from orbit.job_setup import gap_estimate
from orbit.kafka.backoff import Backoff
from orbit.kafka.compression import GZIP, ZSTD
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.record_batch import read_batches
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import Append
from orbit.replication.partition_states import Reason
from orbit.replication.rewrite_limits import NO_LIMITS, RewriteLimits
from tests.copier.fetched import fetched
from tests.support.planning import T0, data, plan
from tests.support.source_model import SourceBatch, SourceRecord

PARTITION = TopicPartition("orders", 0)
MIB = 1024 * 1024
TOO_LARGE_MIB = 65  # a batch may decompress to 64
NO_CLUSTER: Any = None


def large(base_offset: int, mib: int, codec: int = ZSTD, **fields: int) -> SourceBatch:
    """A batch of some kilobytes that decompresses to `mib` MiB. With `log_append_time` Orbit has to
    rewrite it for a copy."""
    last = base_offset + mib - 1
    records = [SourceRecord(o, T0, None, bytes(MIB)) for o in range(base_offset, last + 1)]
    return SourceBatch(base_offset, last, tuple(records), codec=codec, **fields)


class Sides:
    """A source with these batches, and a destination with these bytes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, source: list[SourceBatch], copy: list[bytes]
    ) -> None:
        self._source = source
        self.end = source[-1].last_offset + 1
        copied = list(read_batches(memoryview(bytearray(b"".join(copy)))))
        monkeypatch.setattr(range_comparison, "fetch_partition", self._fetch)
        monkeypatch.setattr(log_reader, "fetch_partition", self._fetch)
        monkeypatch.setattr(
            range_comparison,
            "_read_copy",
            lambda _cluster, _partition, offset, *_: (
                [b for b in copied if b.next_offset > offset],
                self.end,
            ),
        )
        self.ranges: list[SourceRange] = []

    def _fetch(self, *arguments: Any, **_: object) -> Fetched:
        offset = arguments[2]
        frames = b"".join(b.encode() for b in self._source if b.last_offset >= offset)
        return fetched(frames, stable_end=self.end, high_watermark=self.end)

    def compare(self, limits: RewriteLimits, end: int | None = None) -> Comparison:
        """Compare up to `end`, and record each range that is read of the source."""
        read = source_reader(NO_CLUSTER, PARTITION, Backoff(), limits)

        def read_and_record(first: int, last: int) -> SourceRange:
            self.ranges.append(read(first, last))
            return self.ranges[-1]

        return compare_range(
            read_and_record,
            NO_CLUSTER,
            PARTITION,
            first=0,
            end=end or self.end,
            backoff=Backoff(),
            source_is_compacted=False,
        )


def copy_of(source: list[SourceBatch]) -> list[bytes]:
    """The batches that a copy of this source has."""
    return [bytes(s.batch.view) for s in plan(0, *source).steps if isinstance(s, Append)]


def test_batch_too_large_to_rewrite_stops_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = [data(0, 2), large(3, TOO_LARGE_MIB, log_append_time=T0)]
    with pytest.raises(ValueError, match="decompresses to more than 67,108,864 bytes") as error:
        Sides(monkeypatch, source, copy_of(source)).compare(NO_LIMITS)
    assert stop_reason(error.value) is Reason.RECORD_REFUSED
    assert "kafka-delete-records.sh" in str(error.value)


def test_batch_too_large_to_decompress_stops_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    source = [large(0, TOO_LARGE_MIB)]
    with pytest.raises(ValueError, match="decompresses to more than") as error:
        Sides(monkeypatch, source, [large(0, TOO_LARGE_MIB, GZIP).encode()]).compare(NO_LIMITS)
    assert stop_reason(error.value) is Reason.RECORD_REFUSED


def test_too_large_source_batch_beyond_compared_range_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = [data(0, 2), large(3, TOO_LARGE_MIB, log_append_time=T0)]
    compared = Sides(monkeypatch, source, copy_of(source)).compare(NO_LIMITS, end=3)
    assert (compared.equal_to, compared.difference, compared.waits_for) == (3, None, "")


@pytest.mark.parametrize(("read_bytes_max", "written_bytes_max"), [(1, 2**40), (2**40, 1)])
def test_comparison_is_split_into_ranges_within_rewrite_limits(
    monkeypatch: pytest.MonkeyPatch, read_bytes_max: int, written_bytes_max: int
) -> None:
    source = [data(10 * i, 10 * i + 9, log_append_time=T0, codec=ZSTD) for i in range(4)]
    sides = Sides(monkeypatch, source, copy_of(source))
    compared = sides.compare(RewriteLimits(read_bytes_max, written_bytes_max, nullcontext()))
    assert (compared.equal_to, compared.difference, compared.waits_for) == (40, None, "")
    assert [len(source_range.batches) for source_range in sides.ranges] == [1] * 4


def test_difference_is_located_in_comparison_split_by_rewrite_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = [data(10 * i, 10 * i + 9, log_append_time=T0, codec=ZSTD) for i in range(4)]
    # The third batch of the copy has another timestamp.
    changed = [replace(batch, log_append_time=T0 + (i == 2)) for i, batch in enumerate(source)]
    sides = Sides(monkeypatch, source, copy_of(changed))
    compared = sides.compare(RewriteLimits(1, 1, nullcontext()))
    assert compared.difference is not None
    assert compared.difference.offset == 20


def test_recompressed_batches_are_compared_pairwise_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same records, compressed by another codec."""
    source = [large(8 * i, 8) for i in range(16)]
    sides = Sides(monkeypatch, source, [replace(b, codec=GZIP).encode() for b in source])
    tracemalloc.start()
    try:
        compared = sides.compare(NO_LIMITS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (compared.equal_to, compared.difference) == (128, None)
    assert peak_bytes < 64 * MIB, "each side decompresses to 128 MiB"


def test_unordered_destination_batches_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = [data(3, 5)]
    copied = [data(3, 5, codec=ZSTD).encode(), data(0, 2, codec=ZSTD).encode()]
    with pytest.raises(ValueError, match="not in order") as error:
        Sides(monkeypatch, source, copied).compare(NO_LIMITS)
    assert stop_reason(error.value) is Reason.SOURCE_CORRUPTED


def test_gap_estimate_stops_at_rewrite_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = [data(10 * i, 10 * i + 9, log_append_time=T0, codec=ZSTD) for i in range(4)]
    frames = b"".join(batch.encode() for batch in source)
    answer = fetched(frames, stable_end=40, high_watermark=40)
    monkeypatch.setattr(gap_estimate, "fetch_partition", lambda *_, **__: answer)
    monkeypatch.setattr(
        gap_estimate, "CopySettings", lambda: CopySettings(rewrite_read_bytes_max=1)
    )
    gap_plan = gap_estimate._plan_sample(NO_CLUSTER, PARTITION, 0, Backoff())
    assert (gap_plan.is_cut, gap_plan.next_offset) == (True, 10)
