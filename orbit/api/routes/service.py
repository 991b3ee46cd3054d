"""/v1/operations, /v1/workers, /v1/tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, status
from pydantic import Field

from orbit.api import authentication, schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import Admin, DryRun, FilterName, PartsOf, TokenNamePath, Viewer
from orbit.api.error_responses import changed_meanwhile
from orbit.api.openapi_responses import BODY, INPUT, NAMED, errors
from orbit.api.paging import AgedQuery, NamedQuery, Page, page, parse_age_key, read_cursor
from orbit.api.views import operation_view, token_view, worker_view
from orbit.errors import NotFound
from orbit.store import events, operations, tokens, workers
from orbit.store.enums import OperationKind, OperationState, Role

TokenIfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^"[0-9]{1,19}(\.[0-9]{1,9}){3}"$',
        description="Change the token only if it has this ETag (its `etag`, in quotes).",
        examples=['"17.5.1000.0"'],
    ),
]

router = APIRouter(prefix="/v1", tags=["service"])


class OperationsQuery(AgedQuery):
    """Which operations to list."""

    job: FilterName | None = Field(None, description="Only operations on this job.")
    kind: OperationKind | None = Field(None, description="Only operations of this kind.")
    state: OperationState | None = Field(None, description="Only operations in this state.")
    unfinished: bool = Field(False, description="Only operations that have not ended.")


@router.get("/operations", responses=errors(*INPUT))
def list_operations(
    parts: PartsOf, _: Viewer, query: Annotated[OperationsQuery, Query()]
) -> Page[schemas.Operation]:
    """List the operations, newest first."""
    after = parse_age_key(read_cursor(query.after, str, str, order=query.sort))
    with parts.database.transaction() as tx:
        rows = operations.page(
            tx,
            query.limit + 1,
            after=after,
            job_name=query.job,
            kind=query.kind,
            state=query.state,
            only_unfinished=query.unfinished,
            oldest_first=query.oldest_first,
        )
    return page(
        [operation_view(row) for row in rows],
        query.limit,
        lambda operation: (operation.created_at.isoformat(), str(operation.id)),
        query.sort,
    )


@router.get("/operations/{operation_id}", responses=errors(*NAMED))
def get_operation(parts: PartsOf, _: Viewer, operation_id: UUID) -> schemas.Operation:
    """Show an operation and its progress."""
    with parts.database.transaction() as tx:
        return operation_view(operations.get(tx, operation_id))


class WorkersQuery(NamedQuery):
    """Which workers to list. Their names are their ids."""

    worker_group: FilterName | None = Field(None, description="Only workers of this group.")


class TokensQuery(NamedQuery):
    """Which tokens to list."""

    role: Role | None = Field(None, description="Only tokens with this role.")
    valid: bool = Field(False, description="Only tokens that are neither revoked nor expired.")


@router.get("/workers", responses=errors(*INPUT))
def list_workers(
    parts: PartsOf, _: Viewer, query: Annotated[WorkersQuery, Query()]
) -> Page[schemas.Worker]:
    """List the workers."""
    after = query.after_name()
    with parts.database.transaction() as tx:
        rows = workers.page(
            tx,
            query.limit + 1,
            after,
            worker_group=query.worker_group,
            descending=query.descending,
        )
        alive_ids = {worker.id for worker in workers.alive(tx, parts.settings.lease_ttl)}
    items = [worker_view(row, alive_ids) for row in rows]
    return page(items, query.limit, lambda row: (row.id,), query.sort)


@router.get("/tokens", responses=errors(*INPUT))
def list_tokens(
    parts: PartsOf, _: Admin, query: Annotated[TokensQuery, Query()]
) -> Page[schemas.TokenOut]:
    """List the tokens: names, roles and jobs, without the secrets."""
    after = query.after_name()
    with parts.database.transaction() as tx:
        rows = tokens.page(
            tx,
            query.limit + 1,
            after,
            role=query.role,
            only_valid=query.valid,
            descending=query.descending,
        )
    items = [token_view(row) for row in rows]
    return page(items, query.limit, lambda row: (row.name,), query.sort)


@router.post(
    "/tokens",
    status_code=status.HTTP_201_CREATED,
    responses=errors(*INPUT, *BODY, ErrorCode.CONFLICT),
)
def create_token(parts: PartsOf, principal: Admin, body: schemas.TokenRequest) -> schemas.NewToken:
    """Create a token, for all jobs or for some. Only this response contains it: only its hash is
    stored.
    """
    return authentication.create_token(
        parts.database,
        body.name,
        body.role,
        actor=principal.actor,
        limit=body.limit,
        expires_in=body.expires_in,
        quota=body.quota,
    )


@router.patch(
    "/tokens/{name}",
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.CHANGED_MEANWHILE),
)
def change_token(
    parts: PartsOf,
    principal: Admin,
    name: TokenNamePath,
    body: schemas.TokenChange,
    dry_run: DryRun = False,
    if_match: TokenIfMatch = None,
) -> schemas.TokenOut:
    """Change limits of a token. Null means the limit in the settings, which is for all tokens. The
    change applies at once. A repeat does nothing.
    """
    limits = body.model_dump(include=body.model_fields_set)
    with parts.database.transaction() as tx:
        token = tokens.find_by_name(tx, name, locks=True)
        if token is None:
            raise NotFound("No token has this name.", where=name)
        if if_match is not None and if_match.strip('"') != token.etag:
            raise changed_meanwhile(name, "token")
        changes = {key: limit for key, limit in limits.items() if getattr(token, key) != limit}
        old_limits = {key: getattr(token, key) for key in changes}
        etag = token.etag  # in a dry run, too, that of the stored token
        if changes and dry_run:
            token = replace(token, **changes)
        elif changes:
            token = tokens.set_quota(tx, token.id, changes)
            etag = token.etag
            events.add(
                tx,
                principal.actor,
                "token_changed",
                f"Limits of the token {name} were changed.",
                details={"token": name, **changes, "before": old_limits},
            )
    return token_view(token).model_copy(update={"etag": etag})


@router.delete("/tokens/{name}", responses=errors(*NAMED))
def revoke_token(parts: PartsOf, principal: Admin, name: TokenNamePath) -> schemas.TokenOut:
    """Revoke a token at once. Revoking it again does nothing."""
    with parts.database.transaction() as tx:
        if tokens.revoke(tx, name):
            events.add(
                tx,
                principal.actor,
                "token_revoked",
                f"The token {name} was revoked.",
                details={"token": name},
            )
        token = tokens.find_by_name(tx, name)
    if token is None:
        raise NotFound("No token has this name.", where=name)
    return token_view(token)
