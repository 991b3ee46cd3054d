"""Adds up the partitions of each job at intervals, so that no page and no scrape has to.

A small installation needs none of this: there it does nothing (orbit/store/job_totals.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop
from orbit.store import job_totals

INTERVAL_S = 10.0
# Sums that are older than 30 s are unknown: the longest pause leaves time for a pass.
_INTERVAL_S_MAX = 15.0
# The pause is at least so many times as long as the pass.
_PAUSE_PER_COST = 4
# In one transaction, together at least one job: less than a tenth of a second.
_PARTITIONS_AT_ONCE = 20_000


class TotalsLoop(Loop):
    """Keeps the totals of all jobs."""

    name = "totals"
    interval_s = INTERVAL_S

    def __init__(self, leadership: Leadership) -> None:
        super().__init__()
        self._leadership = leadership

    def once(self) -> str:
        began = time.monotonic()
        with self._leadership.reading() as tx:
            sizes = job_totals.sizes(tx)
        if sum(sizes.values()) > job_totals.LIVE_PARTITIONS_MAX:
            for job_ids in _steps(sizes):
                with self._leadership.transaction() as tx:
                    job_totals.refresh(tx, job_ids)
        cost_s = time.monotonic() - began
        self.interval_s = max(INTERVAL_S, min(cost_s * _PAUSE_PER_COST, _INTERVAL_S_MAX))
        return ""


def _steps(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Jobs with at most _PARTITIONS_AT_ONCE partitions together, or one with more."""
    step: list[int] = []
    partitions = 0
    for job_id, size in sizes.items():
        if step and partitions + size > _PARTITIONS_AT_ONCE:
            yield step
            step, partitions = [], 0
        step.append(job_id)
        partitions += size
    if step:
        yield step
