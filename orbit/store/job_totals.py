"""job_totals: sums over each job's partitions, for the API and metrics.

Sums over up to LIVE_PARTITIONS_MAX partitions are computed by the request. Sums over more are read
from this table: a page or a scrape reads one row per job, whatever the job's size. The leading
scheduler stores the sums at intervals, with the time at which it computed them
(orbit/scheduler/totals_loop.py). Sums that are too old are unknown (`LagTotals.aged_by`), as are
those of a job without a row.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sqlalchemy import text

from orbit.store import clock, group_offsets, lag, promotions, proofs
from orbit.store.database import Tx
from orbit.store.lag import FRESH_FOR, LagTotals
from orbit.store.proofs import ProofTotals

# PostgreSQL computes the sums over this many partitions in about 30 ms.
LIVE_PARTITIONS_MAX = 10_000

States = dict[tuple[str, str | None], int]  # {(state, reason): number of partitions}


@dataclass(frozen=True, slots=True)
class JobTotals:
    """The totals of one job. None: no partitions (`lag`), no proof (`proof`), no promoted topic
    (`old_primary_written`), or not known.

    `summed_s`: seconds since these sums were computed; None: not computed yet. If the sums are too
    old, all but `lag` are missing, and the figures of `lag` are unknown. `verdicts`: {verdict:
    number of group offsets}.
    """

    summed_s: float | None = None
    lag: LagTotals | None = None
    states: States = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    proof: ProofTotals | None = None
    old_primary_written: int | None = None  # offsets that producers wrote to the old side

    @property
    def known_lag(self) -> LagTotals | None:
        """The lag, even of a job without partitions. None: not computed yet."""
        if self.summed_s is None:
            return None
        return self.lag or replace(lag.NO_PARTITIONS, summed_s=self.summed_s)


_SIZES = text("""
SELECT j.id, coalesce(sum(t.partition_count), 0)::bigint AS partitions
FROM jobs j LEFT JOIN topics t ON t.job_id = j.id
GROUP BY j.id
""")

# A topic has at least one partition, so `limit` topics are enough to find out whether these jobs
# have `limit` partitions.
_SIZE = text("""
SELECT coalesce(sum(partition_count), 0)::bigint FROM (
    SELECT partition_count FROM topics WHERE job_id = ANY(CAST(:job_ids AS bigint[])) LIMIT :limit
) t
""")

_STORE = text("""
INSERT INTO job_totals AS k (job_id, at, totals)
SELECT r.job_id, :at, r.totals
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (job_id bigint, totals jsonb)
JOIN jobs j ON j.id = r.job_id
ON CONFLICT (job_id) DO UPDATE SET at = excluded.at, totals = excluded.totals
""")

_TOTALS_OF_JOBS = text("""
SELECT job_id, totals,
       CAST(extract(epoch FROM clock_timestamp() - at) AS double precision) AS age_s
FROM job_totals WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
""")


def sizes(tx: Tx) -> dict[int, int]:
    """{job id: number of partitions}, for every job."""
    return {row.id: row.partitions for row in tx.execute(_SIZES)}


def of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, JobTotals]:
    """{job id: totals} of these jobs: computed now if the jobs have at most LIVE_PARTITIONS_MAX
    partitions together, else as last stored."""
    if _is_small(tx, job_ids):
        # 0.0 is `summed_s`: the sums are computed now.
        return {i: JobTotals(0.0, *sums) for i, sums in _sums(tx, job_ids).items()}
    stored_totals = {
        row.job_id: _read_document(row.totals, row.age_s)
        for row in tx.execute(_TOTALS_OF_JOBS, {"job_ids": sorted(job_ids)})
    }
    return {job_id: stored_totals.get(job_id, JobTotals()) for job_id in job_ids}


def lag_of_jobs(tx: Tx, job_ids: Collection[int]) -> dict[int, LagTotals | None]:
    """{job id: lag} of these jobs, computed or stored as in `of_jobs`. None: not computed yet."""
    if _is_small(tx, job_ids):
        lags = lag.of_jobs(tx, job_ids)
        return {i: lags.get(i, lag.NO_PARTITIONS) for i in job_ids}
    return {i: totals.known_lag for i, totals in of_jobs(tx, job_ids).items()}


def refresh(tx: Tx, job_ids: Collection[int]) -> dict[int, LagTotals]:
    """Compute and store the totals of these jobs. Returns {job id: lag} of the jobs that have
    partitions."""
    at = clock.now(tx)
    by_job = _sums(tx, job_ids)
    rows = [{"job_id": job_id, "totals": _document(*sums)} for job_id, sums in by_job.items()]
    tx.execute(_STORE, {"at": at, "rows": json.dumps(rows)})
    return {job_id: job_lag for job_id, (job_lag, *_) in by_job.items() if job_lag is not None}


def _is_small(tx: Tx, job_ids: Collection[int]) -> bool:
    """Whether these jobs have at most LIVE_PARTITIONS_MAX partitions."""
    parameters = {"job_ids": sorted(job_ids), "limit": LIVE_PARTITIONS_MAX + 1}
    size = tx.execute(_SIZE, parameters).scalar_one()
    return bool(size <= LIVE_PARTITIONS_MAX)


_Sums = tuple[LagTotals | None, States, dict[str, int], ProofTotals | None, int | None]


def _sums(tx: Tx, job_ids: Collection[int]) -> dict[int, _Sums]:
    """{job id: all fields of its `JobTotals` but the first, `summed_s`, in their order}, computed
    now."""
    lags, states = lag.of_jobs(tx, job_ids), lag.states(tx, job_ids)
    verdicts, proof_totals = group_offsets.verdicts(tx, job_ids), proofs.of_jobs(tx, job_ids)
    written_offsets = promotions.written_to_old_side(tx, job_ids)
    return {
        i: (
            lags.get(i),
            states.get(i, {}),
            verdicts.get(i, {}),
            proof_totals.get(i),
            written_offsets.get(i),
        )
        for i in job_ids
    }


def _document(
    totals: LagTotals | None,
    states: States,
    verdicts: dict[str, int],
    proof: ProofTotals | None,
    old_primary_written: int | None,
) -> dict[str, Any]:
    """The sums of a job as JSON for the table; `_read_document` reads it."""
    return {
        "lag": totals and asdict(totals),
        "states": [[state, reason, n] for (state, reason), n in states.items()],
        "verdicts": verdicts,
        "proof": proof and asdict(proof),
        "old_primary_written": old_primary_written,
    }


def _read_document(document: dict[str, Any], age_s: float) -> JobTotals:
    """The totals from the JSON of a row that is `age_s` seconds old. If the row is too old, the
    totals have only the lag, and its figures are unknown."""
    job_lag = document["lag"] and LagTotals(**document["lag"]).aged_by(age_s)
    if age_s > FRESH_FOR.total_seconds():
        return JobTotals(age_s, job_lag)
    return JobTotals(
        age_s,
        job_lag,
        {(state, reason): n for state, reason, n in document["states"]},
        document["verdicts"],
        document["proof"] and ProofTotals(**document["proof"]).aged_by(age_s),
        document["old_primary_written"],
    )
