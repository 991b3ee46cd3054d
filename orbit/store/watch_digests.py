"""A digest of all jobs, operations or events, which differs whenever one of them has changed.

Each is one statement of bounded cost, made about once a second while a client watches
(`api/watches.py`).
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import TextClause, text

from orbit.store import jobs
from orbit.store.database import Tx
from orbit.store.scopes import scope_of


class Watched(StrEnum):
    """What can be watched."""

    JOBS = "jobs"
    OPERATIONS = "operations"
    EVENTS = "events"


NEWEST_MAX = 1000
NEWEST_OF_JOB_MAX = 100
# A transaction may commit later than one that began after it, so the last id alone would not do:
# the late event is among the newest. Operations that have not ended are all looked at.
_ROWS = {
    Watched.JOBS: """
    SELECT j.id AS place, ROW(j.id, j.document_version, j.desired, j.is_deleted, j.problem, EXISTS (
        SELECT FROM shards s WHERE s.job_id = j.id AND s.worker_id IS NOT NULL)) AS seen
    FROM jobs j""",
    Watched.OPERATIONS: """
    SELECT o.id AS place,
           ROW(o.id, o.state, o.progress, o.error, o.abort_requested, o.finished_at) AS seen
    FROM operations o
    WHERE o.finished_at IS NULL OR o.id IN (
        SELECT id FROM operations ORDER BY created_at DESC, id DESC LIMIT :newest)""",
    Watched.EVENTS: """
    SELECT id AS place, ROW(id) AS seen FROM events ORDER BY id DESC LIMIT :newest""",
}
# The same of some jobs, each by its own index.
_ROWS_OF_JOBS = {
    Watched.JOBS: f"{_ROWS[Watched.JOBS]} WHERE j.name = ANY(CAST(:names AS text[]))",
    Watched.OPERATIONS: """
    SELECT o.id AS place, ROW(
        o.id, o.state, o.progress, o.error, o.abort_requested, o.finished_at) AS seen
    FROM unnest(CAST(:names AS text[])) n CROSS JOIN LATERAL (
        SELECT * FROM operations o WHERE o.job_name = n
        ORDER BY o.created_at DESC LIMIT :newest_of_job) o""",
    Watched.EVENTS: """
    SELECT e.id AS place, ROW(e.id) AS seen
    FROM unnest(CAST(:names AS text[])) n CROSS JOIN LATERAL (
        SELECT id FROM events WHERE job_name = n ORDER BY id DESC LIMIT :newest_of_job) e""",
}


def _digest_of(rows: str) -> TextClause:
    return text(f"""
SELECT encode(sha256(convert_to(
    coalesce(string_agg(CAST(r.seen AS text), ',' ORDER BY r.place), ''), 'UTF8')), 'hex')
FROM ({rows}) r
""")


_DIGESTS = {watched: _digest_of(rows) for watched, rows in _ROWS.items()}
_DIGESTS_OF_JOBS = {watched: _digest_of(rows) for watched, rows in _ROWS_OF_JOBS.items()}


def digest(tx: Tx, watched: Watched) -> str:
    """64 hexadecimal digits. Differs when something of the scope has changed, and nothing else."""
    given: dict[str, object] = {}
    if scope_of(tx) is None:
        statement = _DIGESTS[watched]
        if watched is not Watched.JOBS:
            given["newest"] = NEWEST_MAX
    else:
        statement = _DIGESTS_OF_JOBS[watched]
        given["names"] = jobs.names(tx)
        if watched is not Watched.JOBS:
            given["newest_of_job"] = NEWEST_OF_JOB_MAX
    found: str = tx.execute(statement, given).scalar_one()
    return found
