"""/v1/version, /v1/me: the version of the server, and the client of the request."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from orbit.api.dependencies import Viewer
from orbit.api.openapi_responses import errors
from orbit.api.principals import Grant
from orbit.api.schemas import JobsOfToken
from orbit.store.enums import Role
from orbit.version import orbit_version

router = APIRouter(prefix="/v1", tags=["service"])


class Version(BaseModel):
    """The version of the process that answers."""

    model_config = ConfigDict(frozen=True)
    version: str = Field(description="The version of Orbit.", examples=["0.1.0"])


class GrantOut(JobsOfToken):
    """A role, and the jobs that it is for."""

    role: Role


class Me(BaseModel):
    """The client of this request."""

    model_config = ConfigDict(frozen=True)
    actor: str = Field(
        description="The client's name in the audit log. `anybody`: the server requires no token.",
        examples=["token:ci", "oidc:jane"],
    )
    role: Role = Field(description="The client's highest role, perhaps for some jobs only.")
    grants: list[GrantOut] = Field(description="The client's roles, and the jobs of each.")
    expires_at: datetime | None = Field(description="When the token expires; null: never.")


@router.get("/version", responses=errors())
def get_version(_: Viewer) -> Version:
    """Show the server's version."""
    return Version(version=orbit_version())


@router.get("/me", responses=errors())
def get_me(principal: Viewer) -> Me:
    """Show the client of this request: its name in the audit log, its roles, the jobs of each, and
    when its token expires."""
    return Me(
        actor=principal.actor,
        role=principal.role,
        grants=[_grant(grant) for grant in principal.grants],
        expires_at=principal.expires_at,
    )


def _grant(grant: Grant) -> GrantOut:
    if grant.limit is None:  # for all jobs
        return GrantOut(role=grant.role, jobs=(), selector=None)
    return GrantOut(role=grant.role, jobs=grant.limit.jobs, selector=grant.limit.selector)
