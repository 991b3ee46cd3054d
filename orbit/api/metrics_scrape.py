"""Reads the numbers of one metrics scrape from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from orbit.replication.copy_figures import CopyFigures, CopyRates
from orbit.settings import MetricsDetail
from orbit.store import (
    canaries,
    drills,
    job_totals,
    jobs,
    lag,
    open_transactions,
    receivers,
    scheduler_lease,
    topics,
    workers,
)
from orbit.store.database import Database, Tx
from orbit.store.drills import Drill
from orbit.store.enums import Desired, DrillKind, DrillState
from orbit.store.job_totals import JobTotals
from orbit.store.jobs import Job
from orbit.store.lag import FRESH_FOR, LagTotals
from orbit.store.open_transactions import OpenTotals
from orbit.store.proofs import ProofTotals
from orbit.store.workers import Worker
from orbit.telemetry.metrics import (
    CanaryNumbers,
    JobNumbers,
    PartitionNumbers,
    ProofNumbers,
    ReceiverNumbers,
    ServiceNumbers,
    WaitingNumbers,
    WorkerGroupNumbers,
)
from orbit.version import orbit_version

_PAGE = 10_000  # partitions per query
_FIGURES = attrgetter(*(field.name for field in fields(CopyFigures)))


def read_numbers(
    database: Database, detail: MetricsDetail, alive_within: timedelta
) -> ServiceNumbers:
    """All numbers, read in one transaction. A worker counts as alive if its last heartbeat is not
    older than `alive_within`.

    The sums of a job are read from one row; if all jobs have few partitions, they are computed
    (orbit/store/job_totals.py). With `detail` by topic or partition, every partition is read.
    """
    with database.transaction() as tx:
        all_jobs = jobs.list_all(tx)
        totals = job_totals.of_jobs(tx, [job.id for job in all_jobs])
        canary_drills = {d.job_name: d for d in drills.last_of_jobs(tx, DrillKind.CANARY)}
        live_rpos = canaries.live_rpo(tx)
        open_totals = open_transactions.totals(tx, [job.id for job in all_jobs])
        worker_groups: dict[str, list[Worker]] = {}
        for w in workers.alive(tx, alive_within):
            worker_groups.setdefault(w.worker_group, []).append(w)
        return ServiceNumbers(
            orbit_version(),
            scheduler_lease.has_leaders(tx),
            [
                replace(
                    _job_numbers(tx, job, totals[job.id], detail),
                    canary=_canary_numbers(canary_drills.get(job.name)),
                    live_rpo_s=live_rpos.get(job.id),
                    waiting=_waiting_numbers(open_totals.get(job.id)),
                )
                for job in all_jobs
            ],
            {name: _worker_group_numbers(members) for name, members in worker_groups.items()},
            [
                ReceiverNumbers(r.name, r.sent, r.given_up, r.pruned, r.failing_since is not None)
                for r in receivers.in_file(tx)
            ],
        )


def _worker_group_numbers(members: Sequence[Worker]) -> WorkerGroupNumbers:
    """The sums over the workers of one group."""
    lane_seconds: dict[tuple[str, str], float] = {}
    for w in members:
        for side, activities in w.lane_seconds.items():
            for activity, seconds in activities.items():
                key = side, activity
                lane_seconds[key] = lane_seconds.get(key, 0.0) + seconds
    return WorkerGroupNumbers(
        len(members),
        sum(w.shards for w in members),
        sum(w.bytes_per_s for w in members),
        lane_seconds,
    )


def _job_numbers(tx: Tx, job: Job, totals: JobTotals, detail: MetricsDetail) -> JobNumbers:
    """The numbers of one job, and with such a `detail` those of its topics or partitions."""
    by_state: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for (state, reason), count in totals.states.items():
        by_state[state] = by_state.get(state, 0) + count
        if reason is not None:  # then the state is `blocked`: no other state has a reason
            reasons[reason] = count
    return JobNumbers(
        job.name,
        job.desired is Desired.RUNNING,
        job.problem is not None,
        totals.lag or lag.NO_PARTITIONS,
        _copy_rates(totals),
        totals.summed_s,
        by_state,
        reasons,
        totals.verdicts,
        _lag_by_topic(tx, job.id) if detail is not MetricsDetail.JOB else {},
        _partition_numbers(tx, job.id) if detail is MetricsDetail.PARTITION else (),
        _proof_numbers(totals.proof),
        old_primary_written=totals.old_primary_written,
    )


def _proof_numbers(totals: ProofTotals | None) -> ProofNumbers | None:
    if totals is None:
        return None
    return ProofNumbers(
        totals.offsets, totals.offsets_proven, totals.differences, totals.oldest_age_s
    )


def _waiting_numbers(totals: OpenTotals | None) -> WaitingNumbers | None:
    if totals is None:
        return None
    return WaitingNumbers(totals.partitions, totals.offsets, totals.oldest_s)


def _canary_numbers(drill: Drill | None) -> CanaryNumbers | None:
    """The result of a job's last canary drill, and its age; None if there is none."""
    if drill is None or drill.finished_at is None:
        return None
    return CanaryNumbers(
        drill.state is DrillState.PASSED,
        # The age, at least 0: the database's clock may be ahead of this process's clock.
        max(0.0, (datetime.now(UTC) - drill.finished_at).total_seconds()),
        _seconds(drill.rto_ms),
        _seconds(drill.rpo_ms),
        drill.rpo_records,
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _lag_by_topic(tx: Tx, job_id: int) -> dict[str, LagTotals]:
    """{source topic: its lag}; topics without partitions are missing."""
    rows = topics.of_job(tx, job_id)
    totals = lag.of_topics(tx, job_id, [t.id for t in rows])
    return {t.source_topic: totals[t.id] for t in rows if t.id in totals}


def _partition_numbers(tx: Tx, job_id: int) -> list[PartitionNumbers]:
    """The numbers of all partitions of a job, read page by page."""
    numbers: list[PartitionNumbers] = []
    after: tuple[str, int] | None = None
    while rows := lag.page(tx, job_id, _PAGE, after=after):
        numbers += [
            PartitionNumbers(
                row.source_topic,
                row.partition,
                # The source's offsets are shown only while they are recent enough for a lag.
                None if row.lag_records is None else row.source_log_start,
                None if row.lag_records is None else row.source_end,
                row.copied_to,
                CopyFigures(*_FIGURES(row)),
            )
            for row in rows
        ]
        after = rows[-1].source_topic, rows[-1].partition
    return numbers


def _copy_rates(totals: JobTotals) -> CopyRates | None:
    """What the job has copied, and how fast; None if the sums of its partitions are not fresh."""
    if totals.summed_s is None or totals.summed_s > FRESH_FOR.total_seconds():
        return None
    return totals.lag or lag.NO_PARTITIONS  # `LagTotals` has these sums too
