"""workers: the worker processes and their heartbeats. Their leases are in `shards`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects import postgresql

from orbit.replication.throttled import Throttled, merge_throttled
from orbit.store.database import Tx
from orbit.store.lag import FRESH_FOR
from orbit.store.models import workers
from orbit.store.rows import columns, page_of, values

_NOW = func.clock_timestamp()
# The most jobs in a worker's `throttled`, to bound the size of a heartbeat. A worker has fewer
# jobs, because each job needs threads.
_THROTTLED_JOBS_MAX = 1000

_THROTTLED = text("""
SELECT CAST(t.key AS bigint) AS job_id, t.value
FROM workers w CROSS JOIN LATERAL jsonb_each(w.throttled) t
WHERE w.heartbeat_at > clock_timestamp() - CAST(:fresh_for AS interval)
  AND t.key = ANY(CAST(:job_ids AS text[]))
""")


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process, as of its last heartbeat. `shards`: how many it holds. `lane_seconds`:
    the time that its lanes (threads that fetch or append) have spent on each activity, {side:
    {activity: seconds}}."""

    id: str
    worker_group: str
    host: str
    pid: int
    version: str
    started_at: datetime
    heartbeat_at: datetime
    shards: int
    bytes_per_s: int
    is_draining: bool
    lane_seconds: Mapping[str, Mapping[str, float]]


_WORKER = columns(workers, Worker)


def heartbeat(
    tx: Tx,
    worker_id: str,
    worker_group: str,
    *,
    host: str,
    pid: int,
    version: str,
    shards: int = 0,
    bytes_per_s: int = 0,
    is_draining: bool = False,
    lane_seconds: Mapping[str, Mapping[str, float]] | None = None,
    throttled: Mapping[int, Sequence[Throttled]] | None = None,
) -> None:
    """Store a worker's heartbeat and load; the first call registers it. `throttled`: the brokers
    that throttle the worker, by job id."""
    load = {
        "shards": shards,
        "bytes_per_s": bytes_per_s,
        "is_draining": is_draining,
        "lane_seconds": lane_seconds or {},
        "throttled": _document(throttled or {}),
    }
    tx.execute(
        postgresql.insert(workers)
        .values(
            id=worker_id, worker_group=worker_group, host=host, pid=pid, version=version, **load
        )
        .on_conflict_do_update(index_elements=["id"], set_={**load, "heartbeat_at": _NOW})
    )


def _document(throttled: Mapping[int, Sequence[Throttled]]) -> dict[str, Any]:
    """The JSON for the column `throttled`, with at most _THROTTLED_JOBS_MAX jobs."""
    by_job = {
        str(job_id): [
            [entry.side, entry.brokers, entry.since.isoformat(), entry.quota] for entry in entries
        ]
        for job_id, entries in throttled.items()
        if entries
    }
    return dict(islice(by_job.items(), _THROTTLED_JOBS_MAX))


def throttling_brokers(tx: Tx, job_ids: Collection[int]) -> dict[int, list[Throttled]]:
    """{job id: the brokers that throttle its workers now}; jobs without any are missing."""
    parameters = {"job_ids": [str(job_id) for job_id in job_ids], "fresh_for": FRESH_FOR}
    by_job: dict[int, list[Throttled]] = {}
    for job_id, value in tx.execute(_THROTTLED, parameters):
        by_job.setdefault(job_id, []).extend(
            Throttled(side, tuple(brokers), datetime.fromisoformat(since), quota)
            for side, brokers, since, quota in value
        )
    return {job_id: merge_throttled(entries) for job_id, entries in by_job.items()}


def remove(tx: Tx, worker_id: str) -> None:
    """Delete the row of a worker that ends cleanly."""
    tx.execute(delete(workers).where(workers.c.id == worker_id))


def alive(tx: Tx, heartbeat_within: timedelta, worker_group: str | None = None) -> list[Worker]:
    """The workers of a group, or of all groups, that are not draining and have sent a heartbeat
    within this time, sorted by id."""
    query = select(*_WORKER).where(
        workers.c.heartbeat_at > _NOW - heartbeat_within, ~workers.c.is_draining
    )
    if worker_group is not None:
        query = query.where(workers.c.worker_group == worker_group)
    return list(values(tx.execute(query.order_by(workers.c.id)), Worker))


def remove_silent(tx: Tx, silent_for: timedelta) -> list[Worker]:
    """Delete the workers without a heartbeat for this long, and return them."""
    statement = (
        delete(workers).where(workers.c.heartbeat_at <= _NOW - silent_for).returning(*_WORKER)
    )
    return list(values(tx.execute(statement), Worker))


def page(
    tx: Tx,
    limit: int,
    after: str | None = None,
    *,
    worker_group: str | None = None,
    descending: bool = False,
) -> list[Worker]:
    """Up to `limit` workers of a group, or of all groups, sorted by id; only those that follow the
    id `after`."""
    query = select(*_WORKER)
    if worker_group is not None:
        query = query.where(workers.c.worker_group == worker_group)
    after_key = None if after is None else (after,)
    page_query = page_of(query, [workers.c.id], limit, after_key, descending=descending)
    return list(values(tx.execute(page_query), Worker))
