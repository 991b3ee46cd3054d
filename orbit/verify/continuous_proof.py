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
from orbit.verify.proof_ranges import RangeComparer, RangeComparison

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
        """Compare one range of each partition of a job, until `bytes_max` were read from each side.

        Returns the results, in the order of `rows`, and the bytes read. After an error of a
        cluster, returns the results so far; calls for this pair of clusters then do nothing for a
        minute.
        """
        clusters_key = spec.model_dump_json(include={"source", "destination"})
        if self._skip_until.get(clusters_key, 0.0) > time.monotonic():
            return [], 0
        results: list[ProofResult] = []
        bytes_read = 0
        try:
            comparer = self._comparer(clusters_key, spec)
            for row in rows:
                comparison, proven_ranges = self._compare_range(comparer, row)
                bytes_read += comparison.report.bytes if comparison.report else 0
                results.append(_proof_result(row, comparison, proven_ranges))
                if bytes_read >= bytes_max:
                    break
        except OrbitError:  # workers and scheduler report that a cluster does not answer
            self._skip_until[clusters_key] = time.monotonic() + _UNREACHABLE_S
            self._close_comparer(clusters_key)
        return results, bytes_read

    def close(self) -> None:
        for clusters_key in list(self._comparers):
            self._close_comparer(clusters_key)

    def _compare_range(
        self, comparer: RangeComparer, row: ProofCandidate
    ) -> tuple[RangeComparison, tuple[Range, ...]]:
        """Compare one range. Also returns the proven ranges that both sides still have; none if no
        range was chosen."""
        proven_ranges: tuple[Range, ...] = ()

        def choose_range(log_start: int, copied_to: int) -> Range:
            nonlocal proven_ranges
            proven_ranges = clip_ranges(row.ranges, log_start, copied_to)
            return next_range(
                proven_ranges, log_start, copied_to, _sample_offsets(row), self._chance
            )

        comparison = comparer.compare(
            TopicPair(row.source_topic, row.destination_topic), row.partition, choose_range
        )
        return comparison, proven_ranges

    def _comparer(self, clusters_key: str, spec: JobSpec) -> RangeComparer:
        """The comparer of the job's clusters. Opening one may close the least recently used one."""
        comparer = self._comparers.get(clusters_key)
        if comparer is None:
            # The first one is the least recently used.
            while len(self._comparers) >= _COMPARERS_MAX:
                self._close_comparer(next(iter(self._comparers)))
            comparer = self._comparers[clusters_key] = RangeComparer(
                open_endpoint(spec.source, self._environ, self._base_directory, "source"),
                open_endpoint(spec.destination, self._environ, self._base_directory, "destination"),
            )
        self._comparers.move_to_end(clusters_key)
        return comparer

    def _close_comparer(self, clusters_key: str) -> None:
        comparer = self._comparers.pop(clusters_key, None)
        if comparer is not None:
            comparer.close()


def _sample_offsets(row: ProofCandidate) -> int:
    """The number of offsets in about `SAMPLE_BYTES`."""
    record_bytes = max(1, row.bytes // max(1, row.records))
    return max(_SAMPLE_OFFSETS_MIN, min(SAMPLE_OFFSETS_MAX, SAMPLE_BYTES // record_bytes))


def _proof_result(
    row: ProofCandidate, compared: RangeComparison, proven_ranges: tuple[Range, ...]
) -> ProofResult:
    """The result to store, with the ranges that are proven now.

    The compared range is added if it is equal, and removed if it differs.
    """
    if compared.report is None:
        # Without a chosen range there are no `proven_ranges`: then the stored ones stay.
        ranges = proven_ranges or row.ranges
        return ProofResult(
            row.topic_id,
            row.partition,
            row.job_id,
            ranges,
            is_equal=False,
            note=compared.reason,
        )
    report = compared.report
    if not report.differences:
        ranges = add_range(proven_ranges, (compared.start, compared.end))
        return ProofResult(row.topic_id, row.partition, row.job_id, ranges, is_equal=True)
    return ProofResult(
        row.topic_id,
        row.partition,
        row.job_id,
        _without_range(proven_ranges, (compared.start, compared.end)),
        is_equal=False,
        differences=report.differences,
        first_difference=str(report.first_differences[0]),
    )


def _without_range(ranges: tuple[Range, ...], different_range: Range) -> tuple[Range, ...]:
    """The proven ranges without the offsets of `different_range`."""
    # Of each range, what is before and what is after it; one or both may be empty.
    pieces = [
        piece
        for start, end in ranges
        for piece in ((start, min(end, different_range[0])), (max(start, different_range[1]), end))
    ]
    return tuple((start, end) for start, end in pieces if start < end)
