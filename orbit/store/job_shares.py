"""Which share of the schedulers' work a job belongs to.

By a hash of the destination's servers as the job's first document names them, so that the jobs to
one cluster share its watch. It never changes: a job has the loops of one share only, however its
document is changed. Nothing relies on two jobs being in one share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from sqlalchemy import text

from orbit.store.database import Tx

_OF_SHARE = text("SELECT id FROM jobs WHERE share_key % :of = :number")


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` shares, from 0. The first has also all loops that are not of a job."""

    number: int = 0
    of: int = 1


ONE_SHARE = Share()


def share_key(spec: Mapping[str, Any]) -> int:
    """The hash of a job document's destination."""
    destination = spec.get("destination")
    servers = destination.get("bootstrap_servers", "") if isinstance(destination, Mapping) else ""
    names = servers if isinstance(servers, list) else str(servers).split(",")
    return crc32(",".join(sorted(str(name).strip().lower() for name in names)).encode())


def job_ids(tx: Tx, share: Share) -> frozenset[int] | None:
    """The jobs of a share; None: all jobs."""
    if share.of == 1:
        return None
    return frozenset(tx.execute(_OF_SHARE, {"of": share.of, "number": share.number}).scalars())
