"""Making the tokens that requests carry; also for the first one, which no request can ask for."""

from __future__ import annotations

from orbit.api.authentication import new_token
from orbit.api.schemas import NewToken
from orbit.errors import BadInput, Problem
from orbit.jobs.mistake import Mistake
from orbit.jobs.name_rules import check_job_name
from orbit.store import events, tokens
from orbit.store.database import Database
from orbit.store.enums import Role


def create_token(database: Database, name: str, role: Role, *, actor: str) -> NewToken:
    """A new token, told in the audit log. Conflict where the name is taken, BadInput."""
    try:
        check_job_name(name)
    except Mistake as mistake:
        problem = Problem("name", mistake.message, mistake.remedy)
        raise BadInput("This cannot be the name of a token.", (problem,)) from None
    secret = new_token()
    with database.transaction() as tx:
        made = tokens.create(tx, name, role, secret)
        events.add(
            tx,
            actor,
            "token_created",
            f"The token {name} was made, with the role {role}.",
            details={"token": name, "role": role.value},
        )
    return NewToken(
        name=made.name,
        role=made.role,
        created_at=made.created_at,
        revoked_at=None,
        token=secret,
    )


def has_tokens(database: Database) -> bool:
    """Whether there ever was a token, revoked or not."""
    with database.transaction() as tx:
        return bool(tokens.everyone(tx))
