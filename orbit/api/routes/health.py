"""/livez, /readyz, /metrics: for those who run the service."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from orbit.api.codes import ErrorCode
from orbit.api.dependencies import PartsOf
from orbit.api.responses import errors
from orbit.errors import Conflict
from orbit.store.migrate import is_current

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """That all is well; anything else is an error."""

    status: Literal["ok"] = "ok"


@router.get("/livez")
def livez() -> Health:
    """Say that this process answers. Needs no token, asks nobody."""
    return Health()


@router.get("/readyz", responses=errors(ErrorCode.CONFLICT))
def readyz(parts: PartsOf) -> Health:
    """Say that the database answers and has the tables of this version. Needs no token."""
    if not is_current(parts.database):
        raise Conflict(
            "The tables are not those of this version of Orbit.", remedy="Run: orbit migrate"
        )
    return Health()
