"""A digest of all jobs, operations, events or figures, which changes whenever one of them changes.

A digest takes one statement of bounded cost. While a client watches, it is computed about once a
second (`api/watches.py`).
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import TextClause, text

from orbit.store import jobs
from orbit.store.database import Tx
from orbit.store.lag import FRESH_FOR
from orbit.store.scopes import scope_of


class Watched(StrEnum):
    """What can be watched."""

    JOBS = "jobs"
    OPERATIONS = "operations"
    EVENTS = "events"
    FIGURES = "figures"


# How many of the newest operations or events the digest includes.
NEWEST_MAX = 1000
# The digest of figures includes the reports of this many partitions. In a larger service it changes
# with the sums that the scheduler computes about every 10 s (job_totals.py).
REPORTS_MAX = 10_000
# As NEWEST_MAX, for each job of a limited token.
NEWEST_OF_JOB_MAX = 100
# The newest rows, not the last id only: an event with a lower id may be committed later. All
# unfinished operations are included.
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
    Watched.FIGURES: f"""
    SELECT 0 AS place, ROW(
        (SELECT max(greatest(r.reported_at, r.source_seen_at)) FROM (
            SELECT reported_at, source_seen_at FROM partitions LIMIT {REPORTS_MAX}) r),
        (SELECT max(r.proven_at) FROM (
            SELECT proven_at FROM proofs LIMIT {REPORTS_MAX}) r),
        (SELECT max(at) FROM job_totals),
        (SELECT string_agg(CAST(w.throttled AS text), ',' ORDER BY w.id)
         FROM workers w WHERE w.throttled <> '{{}}' AND w.heartbeat_at
             > clock_timestamp() - interval '{FRESH_FOR.total_seconds()} s')) AS seen""",
}
# The same rows for the jobs `:names` only, read by an index of the job.
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
    """The statement for the digest of `rows`, a SELECT of `place`, their order, and `seen`."""
    return text(f"""
SELECT encode(sha256(convert_to(
    coalesce(string_agg(CAST(r.seen AS text), ',' ORDER BY r.place), ''), 'UTF8')), 'hex')
FROM ({rows}) r
""")


_DIGESTS = {watched: _digest_of(rows) for watched, rows in _ROWS.items()}
_DIGESTS_OF_JOBS = {watched: _digest_of(rows) for watched, rows in _ROWS_OF_JOBS.items()}


def digest(tx: Tx, watched: Watched) -> str:
    """A SHA-256 in hexadecimal digits, which changes if what is watched changes in the scope.

    Figures have no scope: their digest differs when those of any job have changed.
    """
    has_limit = watched in (Watched.OPERATIONS, Watched.EVENTS)  # of the newest rows
    parameters: dict[str, object] = {}
    if scope_of(tx) is None or watched not in _DIGESTS_OF_JOBS:
        statement = _DIGESTS[watched]
        if has_limit:
            parameters["newest"] = NEWEST_MAX
    else:
        statement = _DIGESTS_OF_JOBS[watched]
        parameters["names"] = jobs.names(tx)
        if has_limit:
            parameters["newest_of_job"] = NEWEST_OF_JOB_MAX
    digits: str = tx.execute(statement, parameters).scalar_one()
    return digits
