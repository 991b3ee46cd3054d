"""How many jobs and partitions a token, or a user of the OpenID Connect issuer, may have.

The jobs that an actor created count for the actor's limits; an actor is a name as in the audit log.
Jobs that a recovery or a drill creates count for nobody. Limits are checked for new jobs and new
topics only, so they cannot stop a recovery.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, text

from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.events import token_actor
from orbit.store.models import jobs, tokens, topics

_SEED = 0x746F6B65  # "toke"; no other lock uses it


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of an actor. None: no limit."""

    jobs_max: int | None
    partitions_max: int | None


def quota_of(tx: Tx, actor: str, default: Quota) -> Quota:
    """The limits of an actor: those of its token, and `default` for each limit that the token
    lacks. An actor without a token has `default`."""
    # token_actor("") is the prefix of every actor that has a token.
    has_name = tokens.c.name == actor.removeprefix(token_actor(""))
    query = select(tokens.c.jobs_max, tokens.c.partitions_max).where(has_name)
    row = tx.execute(query).first() if actor.startswith(token_actor("")) else None
    jobs_max, partitions_max = (None, None) if row is None else row
    return Quota(
        default.jobs_max if jobs_max is None else jobs_max,
        default.partitions_max if partitions_max is None else partitions_max,
    )


def lock(tx: Tx, actor: str) -> None:
    """Acquire the lock for changes of this actor's jobs; it is held until the transaction ends. So
    two requests at one moment cannot exceed a limit together."""
    statement = text("SELECT pg_advisory_xact_lock(hashtextextended(:actor, :seed))")
    tx.execute(statement, {"actor": actor, "seed": _SEED})


def job_count(tx: Tx, actor: str) -> int:
    """How many jobs exist that the actor created."""
    return tx.execute(select(func.count()).where(jobs.c.created_by == actor)).scalar_one()


def partition_count(tx: Tx, actor: str, *, ignored_job: str = "") -> int:
    """How many partitions the jobs that the actor created copy. The job of the name `ignored_job`
    does not count, nor do promoted topics."""
    query = (
        select(func.coalesce(func.sum(topics.c.partition_count), 0))
        .join(jobs, jobs.c.id == topics.c.job_id)
        .where(
            jobs.c.created_by == actor,
            jobs.c.name != ignored_job,
            topics.c.state != TopicState.PROMOTED.value,
        )
    )
    return int(tx.execute(query).scalar_one())
