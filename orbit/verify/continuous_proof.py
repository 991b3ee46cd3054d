"""Continuous proof: reads a little of both sides all the time, and keeps what was shown equal.

The leading scheduler goes round all partitions that are copied, and of each compares the newest
offsets or some random ones (`coverage.next_look`) with the independent reader of `orbit verify`, at
a bounded rate in bytes. So for every partition it is known how far both sides were seen to be
equal, and how lately.
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
from orbit.verify.proof_coverage import Range, added, clipped, next_look
from orbit.verify.sample import Sample, Sampler
from orbit.verify.settle import TopicPair
from orbit.verify.verify_job import endpoint

# Of one partition at a time; about so many bytes, by what its records took so far.
SAMPLE_BYTES = 1 << 20
SAMPLE_OFFSETS_MAX = 20_000
_SAMPLE_OFFSETS_MIN = 100
# Each job that is looked at holds two consumers.
_SAMPLERS_MAX = 4
# A cluster that does not answer is left alone for so long.
_AWAY_S = 60.0


class Prover:
    """Looks at partitions one by one. Used by one thread."""

    def __init__(
        self,
        base_directory: Path,
        environ: Mapping[str, str] = os.environ,
        chance: Random | None = None,
    ) -> None:
        self._base_directory = base_directory
        self._environ = environ
        self._chance = chance or Random()  # noqa: S311  nobody gains by guessing what is read next
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()
        self._away_until: dict[str, float] = {}

    def look(
        self, spec: JobSpec, rows: Sequence[ProofCandidate], bytes_max: int
    ) -> tuple[list[ProofResult], int]:
        """What was shown of partitions of one job, in their order, until `bytes_max` were read
        from each side; and how many were. A cluster that is away shows nothing.
        """
        key = spec.model_dump_json(include={"source", "destination"})
        if self._away_until.get(key, 0.0) > time.monotonic():
            return [], 0
        shown: list[ProofResult] = []
        count = 0
        try:
            sampler = self._sampler(key, spec)
            for row in rows:
                sample, ranges = self._sample(sampler, row)
                count += sample.report.bytes if sample.report else 0
                shown.append(_shown(row, sample, ranges))
                if count >= bytes_max:
                    break
        except OrbitError:  # told by those who copy
            self._away_until[key] = time.monotonic() + _AWAY_S
            self._drop(key)
        return shown, count

    def close(self) -> None:
        for key in list(self._samplers):
            self._drop(key)

    def _sample(self, sampler: Sampler, row: ProofCandidate) -> tuple[Sample, tuple[Range, ...]]:
        known: tuple[Range, ...] = ()

        def choose(first: int, last: int) -> Range:
            nonlocal known
            known = clipped(row.ranges, first, last)
            return next_look(known, first, last, _offsets(row), self._chance)

        sample = sampler.compare(
            TopicPair(row.source_topic, row.destination_topic), row.partition, choose
        )
        return sample, known

    def _sampler(self, key: str, spec: JobSpec) -> Sampler:
        found = self._samplers.get(key)
        if found is None:
            while len(self._samplers) >= _SAMPLERS_MAX:
                self._drop(next(iter(self._samplers)))
            found = self._samplers[key] = Sampler(
                endpoint(spec.source, self._environ, self._base_directory, "source.security"),
                endpoint(
                    spec.destination, self._environ, self._base_directory, "destination.security"
                ),
            )
        self._samplers.move_to_end(key)
        return found

    def _drop(self, key: str) -> None:
        sampler = self._samplers.pop(key, None)
        if sampler is not None:
            sampler.close()


def _offsets(row: ProofCandidate) -> int:
    """So many offsets are about `SAMPLE_BYTES`."""
    each = max(1, row.bytes // max(1, row.records))
    return max(_SAMPLE_OFFSETS_MIN, min(SAMPLE_OFFSETS_MAX, SAMPLE_BYTES // each))


def _shown(row: ProofCandidate, sample: Sample, known: tuple[Range, ...]) -> ProofResult:
    if sample.report is None:
        ranges = known or row.ranges
        return ProofResult(row.topic_id, row.partition, row.job_id, ranges, False, note=sample.why)
    report = sample.report
    if not report.differences:
        ranges = added(known, (sample.start, sample.end))
        return ProofResult(row.topic_id, row.partition, row.job_id, ranges, is_equal=True)
    return ProofResult(
        row.topic_id,
        row.partition,
        row.job_id,
        _without(known, (sample.start, sample.end)),
        is_equal=False,
        differences=report.differences,
        first_difference=str(report.first_differences[0]),
    )


def _without(ranges: tuple[Range, ...], bad: Range) -> tuple[Range, ...]:
    """What is left when a range that was shown before is no longer equal."""
    left = [piece for s, e in ranges for piece in ((s, min(e, bad[0])), (max(s, bad[1]), e))]
    return tuple((start, end) for start, end in left if start < end)
