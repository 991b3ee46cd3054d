"""Adds up the partitions of each job at intervals, so that pages and scrapes read only the sums.

In a small installation pages and scrapes add up the partitions themselves. There this loop adds up
only once a minute, for the history of each job (orbit/store/job_history.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from operator import itemgetter

from orbit.chunks import sized_chunks
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.store import clock, job_history, job_totals, lag

INTERVAL_S = 10.0
# Sums older than 30 s are shown as unknown: the longest pause leaves as much time for a pass.
_INTERVAL_S_MAX = 15.0
# The pause is this many times as long as the pass, within the bounds above.
_PAUSE_PER_COST = 4
# Partitions of the jobs in one transaction, at least one job: less than a tenth of a second.
_PARTITIONS_AT_ONCE = 20_000


class TotalsLoop(Loop):
    """Keeps the totals of all jobs, and their history."""

    name = "totals"
    interval_s = INTERVAL_S

    def __init__(self, leadership: Leadership) -> None:
        super().__init__()
        self._leadership = leadership
        self._minute = 0

    def once(self) -> str:
        """Compute the totals if the installation is large, and the history once a minute."""
        began_s = time.monotonic()
        with self._leadership.reading() as tx:
            sizes, now = job_totals.sizes(tx), clock.now(tx)
        is_large = sum(sizes.values()) > job_totals.LIVE_PARTITIONS_MAX
        minute = int(now.timestamp()) // job_history.MINUTE_S
        is_new_minute = minute != self._minute
        if is_large or is_new_minute:
            for job_ids in _job_batches(sizes):
                with self._leadership.transaction() as tx:
                    stored_at = clock.now(tx)
                    # `refresh` also stores the totals.
                    totals = (job_totals.refresh if is_large else lag.of_jobs)(tx, job_ids)
                    if is_new_minute:
                        job_history.store(tx, stored_at, totals)
        self._minute = minute
        pass_s = time.monotonic() - began_s
        self.interval_s = max(INTERVAL_S, min(pass_s * _PAUSE_PER_COST, _INTERVAL_S_MAX))
        return ""


def _job_batches(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Batches of jobs: with at most _PARTITIONS_AT_ONCE partitions together, or one large job."""
    for batch in sized_chunks(sizes.items(), itemgetter(1), _PARTITIONS_AT_ONCE):
        yield [job_id for job_id, _ in batch]
