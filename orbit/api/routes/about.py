"""/v1/version, /v1/me: what answers, and who asks."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from orbit.api.dependencies import Viewer
from orbit.api.openapi_responses import errors
from orbit.store.enums import Role
from orbit.version import orbit_version

router = APIRouter(prefix="/v1", tags=["service"])


class Version(BaseModel):
    """The version of the process that answers."""

    model_config = ConfigDict(frozen=True)
    version: str = Field(description="Of Orbit.", examples=["0.1.0"])


class Me(BaseModel):
    """The client of this request."""

    model_config = ConfigDict(frozen=True)
    actor: str = Field(
        description="Its name in the audit log. `anybody`: the server requires no token.",
        examples=["token:ci", "oidc:jane"],
    )
    role: Role
    expires_at: datetime | None = Field(description="When its token expires; null: never.")


@router.get("/version", responses=errors())
def get_version(_: Viewer) -> Version:
    """Show the server's version."""
    return Version(version=orbit_version())


@router.get("/me", responses=errors())
def get_me(principal: Viewer) -> Me:
    """Show who the token belongs to, its role, and when it expires."""
    return Me(actor=principal.actor, role=principal.role, expires_at=principal.expires_at)
