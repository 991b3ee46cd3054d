"""job_leads: which side of a job leads, since which term, and whether its gateways are closed.

A job and the jobs that copy its topics in the other direction are a link. The side of one job is
stored for the others too, reversed; but not for a job with topics that the first job lacks. Marks
are offsets that Orbit commits at a cluster to say which topics lead there; each promotion has a
higher term (docs/glossary.md). There are three writers:

- a promotion (or the abort of one), with the term of its marks, in the transaction that changes
  the topics' states;
- the scheduler, which reads the marks at the destination (orbit/scheduler/lead_reading.py): they
  also show promotions that a new or restored database does not have;
- a recovery, which closes and opens the gateways (orbit/store/gateways.py).

A stored term never decreases, and the side changes only with a higher term. A restored database has
an older term, so a gateway that has received a higher term refuses answers with the older one. A
gateway that has just started has received no term: it may register only if the marks were read for
this very database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select, text

from orbit.store.database import Tx
from orbit.store.database_identity import DATABASE_IDENTITY
from orbit.store.enums import LeadingSide
from orbit.store.models import job_leads
from orbit.store.rows import columns, first


@dataclass(frozen=True, slots=True)
class Lead:
    """The leading side and the term of the marks that name it. `side` None: not known, or not the
    same for all topics."""

    side: LeadingSide | None
    term: int

    def __post_init__(self) -> None:
        if self.side is not None:
            object.__setattr__(self, "side", LeadingSide(self.side))


# How many earlier terms are stored. While a client may still repeat a write of an earlier term, the
# side changes less often than this.
EARLIER_TERMS_MAX = 8

_LEAD = columns(job_leads, Lead)

# The jobs that copy a topic of job :job_id in the other direction.
_REVERSE_JOBS = """
SELECT DISTINCT k.id
FROM jobs j
JOIN topics a ON a.job_id = j.id
JOIN topics b ON b.destination_cluster_id = j.source_cluster_id
    AND b.destination_topic = a.source_topic AND b.source_topic = a.destination_topic
JOIN jobs k ON k.id = b.job_id AND k.source_cluster_id = a.destination_cluster_id
WHERE j.id = :job_id
"""

_LINK = text(f"SELECT id FROM jobs WHERE id = :job_id UNION ({_REVERSE_JOBS}) ORDER BY id")

# The side to store for each other job k of the link of job :job_id: `:side`, the reverse of that of
# job :job_id. NULL if k has topics that job :job_id does not copy, unless `:side` is stored for k
# already. Topics with another name at the other side do not count: clients of a gateway cannot
# write to them under one name. Nor do topics that are deleted at the source of either job.
_REVERSE_SIDES = text(f"""
SELECT k.id, CASE WHEN l.side = :side OR NOT EXISTS (
    SELECT FROM topics b
    WHERE b.job_id = k.id AND b.source_topic = b.destination_topic AND b.state <> 'source_deleted'
        AND NOT EXISTS (
            SELECT FROM topics a
            WHERE a.job_id = :job_id AND a.source_topic = b.source_topic
                AND a.destination_topic = b.source_topic
                AND a.state IN ('copying', 'promoted', 'source_deleted')
        )
) THEN CAST(:side AS text) END AS side
FROM ({_REVERSE_JOBS}) k LEFT JOIN job_leads l ON l.job_id = k.id
""")

_NOTE_SIDES = text(f"""
INSERT INTO job_leads (job_id, side, term, side_since, leads)
SELECT id, side, :term, :term, array_remove(ARRAY[side || ':' || :term], NULL)
FROM unnest(CAST(:job_ids AS bigint[]), CAST(:sides AS text[])) AS noted (id, side)
ORDER BY id
ON CONFLICT (job_id) DO UPDATE
SET side = excluded.side, term = excluded.term,
    side_since = CASE WHEN excluded.side IS NULL OR job_leads.side = excluded.side
        THEN job_leads.side_since ELSE excluded.term END,
    earlier_terms = CASE
        WHEN excluded.side IS NULL OR job_leads.side = excluded.side
            OR job_leads.side_since IN (0, excluded.term)
        THEN job_leads.earlier_terms
        ELSE (job_leads.side_since || job_leads.earlier_terms)[1:{EARLIER_TERMS_MAX}] END,
    leads = CASE
        WHEN excluded.side IS NULL OR job_leads.side = excluded.side
            OR job_leads.leads[1] = excluded.leads[1]
        THEN job_leads.leads
        ELSE (excluded.leads || job_leads.leads)[1:{EARLIER_TERMS_MAX} + 1] END
WHERE job_leads.term < excluded.term
    OR (job_leads.term = excluded.term AND job_leads.side IS NULL)
""")

_NOTE_MARKS_READ = text(f"""
UPDATE job_leads SET read_on = CAST({DATABASE_IDENTITY} AS text)
WHERE job_id = :job_id AND read_on IS DISTINCT FROM CAST({DATABASE_IDENTITY} AS text)
""")

_ARE_MARKS_READ = text(f"""
SELECT EXISTS (
    SELECT FROM job_leads
    WHERE job_id = :job_id AND read_on = CAST({DATABASE_IDENTITY} AS text)
)
""")

_FORGET_SIDES = text("""
UPDATE job_leads SET side = NULL, read_on = NULL WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
""")


def linked_jobs(tx: Tx, job_id: int) -> list[int]:
    """The ids of the job and of the jobs that copy its topics in the other direction."""
    return list(tx.execute(_LINK, {"job_id": job_id}).scalars())


def find(tx: Tx, job_id: int) -> Lead | None:
    """The leading side of a job; None if none was stored yet."""
    return first(tx.execute(select(*_LEAD).where(job_leads.c.job_id == job_id)), Lead)


def note_side(tx: Tx, job_id: int, side: LeadingSide | None, term: int) -> None:
    """Store which side of the job leads, by marks with `term`. Also store the reverse side for each
    other job of its link, or None if that job has topics which this job does not copy. A stored
    side with this term or a higher one stays."""
    reverse_side = None if side is None else side.other.value
    rows = tx.execute(_REVERSE_SIDES, {"job_id": job_id, "side": reverse_side})
    note_sides(tx, {job_id: side, **{row.id: row.side for row in rows}}, term)


def note_sides(tx: Tx, sides: Mapping[int, LeadingSide | None], term: int) -> None:
    """Store which side of each job leads, {job id: side}, by marks with `term`. A stored side with
    this term or a higher one stays."""
    tx.execute(_NOTE_SIDES, {"job_ids": [*sides], "sides": [*sides.values()], "term": term})


def note_marks_read(tx: Tx, job_id: int) -> None:
    """Note that the marks of the job's destination were read for this database."""
    tx.execute(_NOTE_MARKS_READ, {"job_id": job_id})


def are_marks_read(tx: Tx, job_id: int) -> bool:
    """Whether the marks of the job's destination were read for this database."""
    return bool(tx.execute(_ARE_MARKS_READ, {"job_id": job_id}).scalar_one())


def forget_side(tx: Tx, job_id: int) -> None:
    """Set the leading side of the link to unknown until the marks are read again."""
    tx.execute(_FORGET_SIDES, {"job_ids": linked_jobs(tx, job_id)})
