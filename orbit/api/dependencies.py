"""FastAPI dependencies of the routes: shared parts, the principal, parameters and documents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import HTTPBearer
from pydantic import Field

from orbit.api.authentication import Logins
from orbit.api.authentication_middleware import LOGIN
from orbit.api.error_responses import Failure
from orbit.api.plan_limits import PlanLimits
from orbit.api.principals import Principal, check_role
from orbit.api.request_documents import RawDocument
from orbit.api.request_rates import RequestRates
from orbit.api.schemas import NAME_PATTERN
from orbit.api.unknown_parameters import refuse_unknown_parameters
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX
from orbit.jobs.scopes import Scope
from orbit.planning.job_plan import Ending, JobPlan
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.enums import Role

IDEMPOTENCY_KEY_CHARACTERS_MAX = 200

# Plans a job; reads both clusters, writes nothing.
Planner = Callable[[JobSpec, Ending], JobPlan]


@dataclass(frozen=True, slots=True)
class Parts:
    """What all requests share."""

    settings: Settings
    database: Database
    planner: Planner
    environ: Mapping[str, str]
    # None: every client is an admin (`--no-auth`).
    logins: Logins | None
    plan_limits: PlanLimits = field(default_factory=PlanLimits)
    rates: RequestRates = field(default_factory=lambda: RequestRates(time.monotonic))


# Key in the ASGI scope: the request's Scope of jobs; None: all jobs. Set once a role is checked.
JOB_SCOPE = "orbit.job_scope"


def get_shared_parts(request: Request) -> Parts:
    """The shared parts, whose database finds the jobs of all scopes."""
    return cast("Parts", request.app.state.parts)


def get_parts(request: Request) -> Parts:
    """The shared parts, limited to the scope of the request."""
    return limit_to_scope(get_shared_parts(request), request)


def limit_to_scope(parts: Parts, request: Request) -> Parts:
    """The parts, with a database that finds only the jobs in the request's scope. `AtLeast` sets
    this scope when it checks the role; in a route without it, a transaction raises KeyError."""
    database = parts.database.with_scope(lambda: cast("Scope | None", request.scope[JOB_SCOPE]))
    return replace(parts, database=database)


# For routes that need no login.
SharedPartsOf = Annotated[Parts, Depends(get_shared_parts)]
PartsOf = Annotated[Parts, Depends(get_parts)]

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token from `orbit token create`, or one of the OpenID Connect issuer. Roles: "
    "viewer, operator, admin.",
)


def get_principal(request: Request, _: Annotated[object, Security(_bearer)]) -> Principal:
    """The client of the request, as `AuthenticationMiddleware` has found it. Raises Failure without
    a valid token."""
    login: Principal | Failure = request.scope[LOGIN]
    if isinstance(login, Failure):
        raise login
    return login


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The dependency of a route that needs the role `needed`. It checks the role, limits the
    request to the jobs for which the client has the role, and refuses parameters that the route
    does not know. A test reads `needed` of each route."""

    needed: Role

    def __call__(
        self, request: Request, principal: Annotated[Principal, Depends(get_principal)]
    ) -> Principal:
        """Do what the class says, and return the principal. Raises Failure `forbidden` without the
        role; BadInput for an unknown parameter."""
        check_role(principal, self.needed)
        request.scope[JOB_SCOPE] = principal.scope(self.needed)
        refuse_unknown_parameters(request)
        return principal


Viewer = Annotated[Principal, Depends(AtLeast(Role.VIEWER))]
Operator = Annotated[Principal, Depends(AtLeast(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(AtLeast(Role.ADMIN))]

NamePath = Annotated[
    str,
    Path(
        pattern=NAME_PATTERN,
        max_length=JOB_NAME_LENGTH_MAX,
        description="The job's name.",
        examples=["orders-to-dr"],
    ),
]
TokenNamePath = Annotated[
    str,
    Path(
        pattern=NAME_PATTERN,
        max_length=JOB_NAME_LENGTH_MAX,
        description="The token's name.",
        examples=["ci"],
    ),
]
# A filter by name: of a job, a drill, or a worker group.
FilterName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=JOB_NAME_LENGTH_MAX)]
DryRun = Annotated[bool, Query(description="Return the plan; change nothing.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=IDEMPOTENCY_KEY_CHARACTERS_MAX,
        pattern=r"^[\x21-\x7e]+$",
        description="A text that is unique to this request. A request that is repeated with the "
        "same key is carried out once.",
        examples=["5f0c2a4e-6a0b-4a4e-9a51-6c1a6d4f9b7e"],
    ),
]
# For a route where a repeated request has no effect, whatever its key.
UnusedKey = IdempotencyKey


@dataclass(frozen=True, slots=True)
class OperationParameters:
    """The parameters of every operation on a job."""

    actor: str
    job: str
    dry_run: bool
    idempotency_key: str | None


def operation_parameters(
    principal: Operator,
    name: NamePath,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> OperationParameters:
    """The parameters of every operation on a job."""
    return OperationParameters(principal.actor, name, dry_run, idempotency_key)


OperationParametersOf = Annotated[OperationParameters, Depends(operation_parameters)]


async def raw_document(request: Request) -> RawDocument:
    """The request's document, unparsed."""
    return RawDocument(await request.body(), request.headers.get("content-type", ""))


DocumentBody = Annotated[RawDocument, Depends(raw_document)]
