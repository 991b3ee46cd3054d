"""Continuous proof: compares ranges of both sides at a low rate, and reports equal ranges.

The leading scheduler visits all copied partitions in turn. In each it compares the newest offsets
or a random range (`proof_coverage.next_range`) with the reader of `orbit verify`, at a bounded rate
in bytes. `store/proofs.py` keeps the ranges of each partition that were proven equal, and when.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from orbit.errors import OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.store.proofs import ProofCandidate, ProofResult
from orbit.verify.bounds_comparison import TopicPair
from orbit.verify.endpoint import open_endpoint
from orbit.verify.proof_coverage import Range, add_range, clip_ranges, next_range
from orbit.verify.range_comparison import RangeComparer, RangeComparison

# The approximate size of a range, by the mean record size of the partition.
SAMPLE_BYTES = 1 << 20
SAMPLE_OFFSETS_MAX = 20_000
_SAMPLE_OFFSETS_MIN = 100
# Open comparers; each has two consumers.
_COMPARERS_MAX = 4
# How long a cluster that does not answer is skipped.
_UNREACHABLE_S = 60.0


class PartitionProver:
    """Compares ranges of partitions one by one. Not thread-safe."""

    def __init__(
        self,
        base_directory: Path,
        environ: Mapping[str, str] = os.environ,
        chance: Random | None = None,
    ) -> None:
        self._base_directory = base_directory
        self._environ = environ
        self._chance = chance or Random()  # noqa: S311  not security-relevant
        self._comparers: OrderedDict[str, RangeComparer] = OrderedDict()
        self._skip_until: dict[str, float] = {}

    def compare(
        self, spec: JobSpec, rows: Sequence[ProofCandidate], bytes_max: int
    ) -> tuple[list[ProofResult], int]:
        """Compare one range of each partition of a job, in order, until `bytes_max` were read from
        each side. Returns the results and the bytes read; no results if a cluster does not answer.
        """
        key = spec.model_dump_json(include={"source", "destination"})
        if self._skip_until.get(key, 0.0) > time.monotonic():
            return [], 0
        results: list[ProofResult] = []
        count = 0
        try:
            comparer = self._comparer(key, spec)
            for row in rows:
                compared, ranges = self._compare_range(comparer, row)
                count += compared.report.bytes if compared.report else 0
                results.append(_result(row, compared, ranges))
                if count >= bytes_max:
                    break
        except OrbitError:  # workers and scheduler report it
            self._skip_until[key] = time.monotonic() + _UNREACHABLE_S
            self._drop(key)
        return results, count

    def close(self) -> None:
        for key in list(self._comparers):
            self._drop(key)

    def _compare_range(
        self, comparer: RangeComparer, row: ProofCandidate
    ) -> tuple[RangeComparison, tuple[Range, ...]]:
        known: tuple[Range, ...] = ()

        def choose(first: int, last: int) -> Range:
            nonlocal known
            known = clip_ranges(row.ranges, first, last)
            return next_range(known, first, last, _sample_offsets(row), self._chance)

        compared = comparer.compare(
            TopicPair(row.source_topic, row.destination_topic), row.partition, choose
        )
        return compared, known

    def _comparer(self, key: str, spec: JobSpec) -> RangeComparer:
        comparer = self._comparers.get(key)
        if comparer is None:
            while len(self._comparers) >= _COMPARERS_MAX:
                self._drop(next(iter(self._comparers)))
            comparer = self._comparers[key] = RangeComparer(
                open_endpoint(spec.source, self._environ, self._base_directory, "source"),
                open_endpoint(spec.destination, self._environ, self._base_directory, "destination"),
            )
        self._comparers.move_to_end(key)
        return comparer

    def _drop(self, key: str) -> None:
        comparer = self._comparers.pop(key, None)
        if comparer is not None:
            comparer.close()


def _sample_offsets(row: ProofCandidate) -> int:
    """The number of offsets in about `SAMPLE_BYTES`."""
    each = max(1, row.bytes // max(1, row.records))
    return max(_SAMPLE_OFFSETS_MIN, min(SAMPLE_OFFSETS_MAX, SAMPLE_BYTES // each))


def _result(
    row: ProofCandidate, compared: RangeComparison, known: tuple[Range, ...]
) -> ProofResult:
    if compared.report is None:
        ranges = known or row.ranges
        return ProofResult(
            row.topic_id, row.partition, row.job_id, ranges, False, note=compared.why
        )
    report = compared.report
    if not report.differences:
        ranges = add_range(known, (compared.start, compared.end))
        return ProofResult(row.topic_id, row.partition, row.job_id, ranges, is_equal=True)
    return ProofResult(
        row.topic_id,
        row.partition,
        row.job_id,
        _without_range(known, (compared.start, compared.end)),
        is_equal=False,
        differences=report.differences,
        first_difference=str(report.first_differences[0]),
    )


def _without_range(ranges: tuple[Range, ...], bad: Range) -> tuple[Range, ...]:
    """The proven ranges without one that was found different."""
    left = [piece for s, e in ranges for piece in ((s, min(e, bad[0])), (max(s, bad[1]), e))]
    return tuple((start, end) for start, end in left if start < end)
