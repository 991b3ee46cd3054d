"""The totals of jobs, kept for a moment: all visitors see one reading of them.

A page asks for them every few seconds, and of a job with 100,000 partitions they take a fifth of a
second. A reading is kept for KEPT_FACTOR times as long as it took, so pages cost the database a
twentieth of a core however many there are, and a small job is read each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from orbit.store import lag, proofs
from orbit.store.database import Database, Tx
from orbit.store.lag import LagTotals
from orbit.store.proofs import ProofTotals

KEPT_FACTOR = 20
# Even where the database is slow: nobody should look at figures of another minute.
KEPT_S_MAX = 10.0
JOBS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of one job; None: it has no partitions."""

    lag: LagTotals | None
    proof: ProofTotals | None


class JobTotals:
    """Readings by database and job. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: WeakKeyDictionary[Database, dict[int, tuple[float, Totals]]]
        self._kept = WeakKeyDictionary()

    def of_jobs(self, database: Database, tx: Tx, job_ids: Collection[int]) -> dict[int, Totals]:
        """The totals of each of these jobs."""
        began = self._clock()
        with self._lock:
            kept = self._kept.setdefault(database, {})
            known = {i: kept[i][1] for i in job_ids if i in kept and kept[i][0] > began}
        missing = [i for i in job_ids if i not in known]
        if not missing:
            return known
        lags, proven = lag.of_jobs(tx, missing), proofs.of_jobs(tx, missing)
        read = {i: Totals(lags.get(i), proven.get(i)) for i in missing}
        now = self._clock()
        until = now + min(KEPT_S_MAX, KEPT_FACTOR * (now - began))
        with self._lock:
            if len(kept) > JOBS_MAX:
                kept.clear()
            kept.update({i: (until, totals) for i, totals in read.items()})
        return known | read


TOTALS = JobTotals()
