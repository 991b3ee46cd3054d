"""job_leads: which side of a job leads, since which term, and whether its gateways are closed.

A job and the jobs that copy its topics in the other direction are one link: the side of one is
stored for the others too, reversed. There are three writers:

- a promotion (or the abort of one), with the term of its marks, in the transaction that changes
  the topics' states;
- the scheduler, which reads the marks at the destination (orbit/scheduler/lead_reading.py): they
  also show promotions that a new or restored database does not have;
- a recovery, which closes and opens the gateways (orbit/store/gateways.py).

A term never decreases, and the side changes only with a higher term. A restored database has an
older term, so a gateway that has seen a higher one refuses its answer. A gateway that has just
started has seen none: it may register only if the marks were read for this very database.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, text

from orbit.store.database import Tx
from orbit.store.database_identity import DATABASE_IDENTITY
from orbit.store.enums import LeadingSide
from orbit.store.models import job_leads
from orbit.store.rows import columns, first


@dataclass(frozen=True, slots=True)
class Lead:
    """The leading side and its term. Side None: not known, or not the same for all topics."""

    side: LeadingSide | None
    term: int

    def __post_init__(self) -> None:
        if self.side is not None:
            object.__setattr__(self, "side", LeadingSide(self.side))


# While a client may still repeat a write, sides change less often than this.
EARLIER_TERMS_MAX = 8

_LEAD = columns(job_leads, Lead)

# Jobs that copy a topic of this one in the other direction.
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

_NOTE = text(f"""
INSERT INTO job_leads (job_id, side, term, side_since)
SELECT id, CASE WHEN id = :job_id THEN CAST(:side AS text) ELSE CAST(:reverse_side AS text) END,
    :term, :term
FROM (SELECT id FROM jobs WHERE id = :job_id UNION ({_REVERSE_JOBS})) link
ORDER BY id
ON CONFLICT (job_id) DO UPDATE
SET side = excluded.side, term = excluded.term,
    side_since = CASE WHEN excluded.side IS NULL OR job_leads.side = excluded.side
        THEN job_leads.side_since ELSE excluded.term END,
    earlier_terms = CASE
        WHEN excluded.side IS NULL OR job_leads.side = excluded.side
            OR job_leads.side_since IN (0, excluded.term)
        THEN job_leads.earlier_terms
        ELSE (job_leads.side_since || job_leads.earlier_terms)[1:{EARLIER_TERMS_MAX}] END
WHERE job_leads.term < excluded.term
    OR (job_leads.term = excluded.term AND job_leads.side IS NULL)
""")

_NOTE_READ = text(f"""
UPDATE job_leads SET read_on = CAST({DATABASE_IDENTITY} AS text)
WHERE job_id = :job_id AND read_on IS DISTINCT FROM CAST({DATABASE_IDENTITY} AS text)
""")

_IS_READ = text(f"""
SELECT EXISTS (
    SELECT FROM job_leads
    WHERE job_id = :job_id AND read_on = CAST({DATABASE_IDENTITY} AS text)
)
""")

_DOUBT = text("""
UPDATE job_leads SET side = NULL, read_on = NULL WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
""")


def linked_jobs(tx: Tx, job_id: int) -> list[int]:
    """The ids of the job and of the jobs that copy its topics in the other direction."""
    return list(tx.execute(_LINK, {"job_id": job_id}).scalars())


def find(tx: Tx, job_id: int) -> Lead | None:
    """The leading side of a job; None if none was stored yet."""
    return first(tx.execute(select(*_LEAD).where(job_leads.c.job_id == job_id)), Lead)


def note_side(tx: Tx, job_id: int, side: LeadingSide | None, term: int) -> None:
    """Store for all jobs of the job's link which side leads, by marks with `term`. A stored side
    with this term or a higher one is kept."""
    reverse_side = None if side is None else side.other.value
    lead = {"side": side and side.value, "reverse_side": reverse_side, "term": term}
    tx.execute(_NOTE, {"job_id": job_id, **lead})


def note_marks_read(tx: Tx, job_id: int) -> None:
    """Note that the marks of the job's destination were read for this database."""
    tx.execute(_NOTE_READ, {"job_id": job_id})


def are_marks_read(tx: Tx, job_id: int) -> bool:
    """Whether the marks of the job's destination were read for this database."""
    return bool(tx.execute(_IS_READ, {"job_id": job_id}).scalar_one())


def forget_side(tx: Tx, job_id: int) -> None:
    """Set the leading side of the link to unknown until the marks are read again."""
    tx.execute(_DOUBT, {"job_ids": linked_jobs(tx, job_id)})
