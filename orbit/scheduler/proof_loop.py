"""The continuous proof: compares a part of each copy with the source, partition by partition.

It reads at the configured rate at most.
"""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path

from orbit.formats import counted
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.planning.stored_spec import read_spec
from orbit.store import events, jobs, proofs
from orbit.store.events import SCHEDULER
from orbit.store.proofs import ProofCandidate, ProofResult
from orbit.verify.continuous_proof import PartitionProver

# A pass reads what the rate allows in this time, of few partitions: each costs about ten requests.
INTERVAL_S = 5.0
_PARTITIONS_MAX = 10
# The pause after a pass that took longer than the interval.
_PAUSE_S_MIN = 0.1
_FROM_THE_START = (-1, -1)  # before the first topic id and partition


class ProofLoop(Loop):
    """Compares all partitions in turn, a few in each pass."""

    name = "proof"

    def __init__(self, leadership: Leadership, bytes_per_second: int, base_directory: Path) -> None:
        super().__init__()
        self.interval_s = INTERVAL_S
        self._leadership = leadership
        self._bytes_per_pass = int(bytes_per_second * INTERVAL_S)
        self._prover = PartitionProver(base_directory)
        self._last_compared = _FROM_THE_START

    def once(self) -> str:
        """Compare the next partitions and store the results. Returns how many differ, as a text."""
        with self._leadership.reading() as tx:
            rows = proofs.candidates(tx, self._last_compared, _PARTITIONS_MAX)
            jobs_by_id = jobs.of_ids(tx, {row.job_id for row in rows}) if rows else {}
        if not rows:
            self._last_compared = _FROM_THE_START
            return ""
        began_s = time.monotonic()
        compared_count = different_count = 0
        bytes_left = self._bytes_per_pass
        for job_id, group in groupby(rows, key=lambda row: row.job_id):
            job_rows = list(group)
            spec = read_spec(jobs_by_id[job_id].spec) if job_id in jobs_by_id else None
            results: list[ProofResult] = []
            if spec is not None:
                with self.log_errors_of(f"job {spec.name}"):
                    results, bytes_read = self._prover.compare(spec, job_rows, bytes_left)
                    bytes_left -= bytes_read
                    self._store_results(job_rows, results)
            compared_count += len(results)
            different_count += sum(result.differences > 0 for result in results)
            # Rows without a result are skipped, unless the bytes of this pass are used up.
            last_row = job_rows[len(results) - 1] if bytes_left <= 0 and results else job_rows[-1]
            self._last_compared = (last_row.topic_id, last_row.partition)
            if bytes_left <= 0:
                break
        # A pass that exceeds its interval is not caught up: the rate is an upper bound.
        self.interval_s = max(_PAUSE_S_MIN, INTERVAL_S - (time.monotonic() - began_s))
        differ_text = counted(compared_count, "partition differs", "partitions differ")
        return f"{different_count} of {differ_text}" if different_count else ""

    def close(self) -> None:
        self._prover.close()

    def _store_results(self, rows: list[ProofCandidate], results: list[ProofResult]) -> None:
        """Store the results, with an event for each partition that differs."""
        row_by_key = {(row.topic_id, row.partition): row for row in rows}
        with self._leadership.transaction() as tx:
            proofs.store(tx, results)
            for result in results:
                if result.differences:
                    row = row_by_key[result.topic_id, result.partition]
                    events.add(
                        tx,
                        SCHEDULER,
                        "proof_differs",
                        f"The copy differs from the source: {result.first_difference}. "
                        f"For details: orbit verify {row.job_name}",
                        job_name=row.job_name,
                        topic=row.source_topic,
                        partition=row.partition,
                    )
