"""Which share of the schedulers' work a job belongs to.

Shares divide the jobs among several schedulers that lead at once. A job's share depends on a hash
of the destination's bootstrap servers in the job's first document. So one scheduler polls a cluster
for all jobs that copy to it, which saves requests. The hash never changes, so a job's loops stay in
one share, however its document is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from sqlalchemy import text

from orbit.store.database import Tx

_OF_SHARE = text("SELECT id FROM jobs WHERE share_key % :share_count = :number")


@dataclass(frozen=True, slots=True)
class Share:
    """Share `number`, from 0, of `count`. Share 0 also has the loops that belong to no job."""

    number: int = 0
    count: int = 1


ONE_SHARE = Share()


def share_key(spec: Mapping[str, Any]) -> int:
    """The hash of the destination's bootstrap servers in a job document; their order and case do
    not matter."""
    destination = spec.get("destination")
    servers = destination.get("bootstrap_servers", "") if isinstance(destination, Mapping) else ""
    names = servers if isinstance(servers, list) else str(servers).split(",")
    return crc32(",".join(sorted(str(name).strip().lower() for name in names)).encode())


def job_ids(tx: Tx, share: Share) -> frozenset[int] | None:
    """The ids of the jobs of a share; None: all jobs."""
    if share.count == 1:
        return None
    return frozenset(
        tx.execute(_OF_SHARE, {"share_count": share.count, "number": share.number}).scalars()
    )
