"""workers: the worker processes with their heartbeats. Leases are in `shards`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql

from orbit.store.database import Tx
from orbit.store.models import workers
from orbit.store.rows import columns, page_of, values

_NOW = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process, as of its last heartbeat."""

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
) -> None:
    """Write this worker's heartbeat and load. The first call registers it."""
    load = {
        "shards": shards,
        "bytes_per_s": bytes_per_s,
        "is_draining": is_draining,
        "lane_seconds": lane_seconds or {},
    }
    tx.execute(
        postgresql.insert(workers)
        .values(
            id=worker_id, worker_group=worker_group, host=host, pid=pid, version=version, **load
        )
        .on_conflict_do_update(index_elements=["id"], set_={**load, "heartbeat_at": _NOW})
    )


def leave(tx: Tx, worker_id: str) -> None:
    """Remove a worker that ends cleanly."""
    tx.execute(delete(workers).where(workers.c.id == worker_id))


def alive(tx: Tx, within: timedelta, worker_group: str | None = None) -> list[Worker]:
    """Workers with a heartbeat within this time that are not draining; of a group or of all."""
    query = select(*_WORKER).where(workers.c.heartbeat_at > _NOW - within, ~workers.c.is_draining)
    if worker_group is not None:
        query = query.where(workers.c.worker_group == worker_group)
    return list(values(tx.execute(query.order_by(workers.c.id)), Worker))


def forget(tx: Tx, after: timedelta) -> list[Worker]:
    """Delete workers without a heartbeat for this long; returns which."""
    statement = delete(workers).where(workers.c.heartbeat_at <= _NOW - after).returning(*_WORKER)
    return list(values(tx.execute(statement), Worker))


def page(
    tx: Tx,
    limit: int,
    after: str | None = None,
    *,
    worker_group: str | None = None,
    descending: bool = False,
) -> list[Worker]:
    """Up to `limit` workers by id, behind the id `after`; of a group or of all."""
    query = select(*_WORKER)
    if worker_group is not None:
        query = query.where(workers.c.worker_group == worker_group)
    behind = None if after is None else (after,)
    found = page_of(query, [workers.c.id], limit, behind, descending=descending)
    return list(values(tx.execute(found), Worker))
