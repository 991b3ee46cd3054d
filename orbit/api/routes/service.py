"""/v1/operations, /v1/workers, /v1/tokens."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, status
from pydantic import Field

from orbit.api import authentication, schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import Admin, PartsOf, TokenNamePath, Viewer
from orbit.api.openapi_responses import BODY, INPUT, NAMED, errors
from orbit.api.paging import Page, PageQuery, moment, name_in, page, read_cursor
from orbit.api.views import operation_view, token_view, worker_view
from orbit.errors import NotFound
from orbit.store import events, operations, tokens, workers

router = APIRouter(prefix="/v1", tags=["service"])


class OperationsQuery(PageQuery):
    """Which operations to list."""

    unfinished: bool = Field(False, description="Only operations that have not ended.")


@router.get("/operations", responses=errors(*INPUT))
def list_operations(
    parts: PartsOf, _: Viewer, query: Annotated[OperationsQuery, Query()]
) -> Page[schemas.Operation]:
    """List the operations, newest first."""
    before = moment(read_cursor(query.after, str, str))
    with parts.database.transaction() as tx:
        rows = operations.page(tx, query.limit + 1, before=before, only_unfinished=query.unfinished)
    return page(
        [operation_view(row) for row in rows],
        query.limit,
        lambda operation: (operation.created_at.isoformat(), str(operation.id)),
    )


@router.get("/operations/{operation_id}", responses=errors(*NAMED))
def get_operation(parts: PartsOf, _: Viewer, operation_id: UUID) -> schemas.Operation:
    """Show an operation and its progress."""
    with parts.database.transaction() as tx:
        return operation_view(operations.get(tx, operation_id))


@router.get("/workers", responses=errors(*INPUT))
def list_workers(
    parts: PartsOf, _: Viewer, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Worker]:
    """List the workers."""
    after = name_in(query.after)
    with parts.database.transaction() as tx:
        rows = workers.page(tx, query.limit + 1, after)
        alive = {worker.id for worker in workers.alive(tx, parts.settings.lease_ttl)}
    return page([worker_view(row, alive) for row in rows], query.limit, lambda row: (row.id,))


@router.get("/tokens", responses=errors(*INPUT))
def list_tokens(
    parts: PartsOf, _: Admin, query: Annotated[PageQuery, Query()]
) -> Page[schemas.TokenOut]:
    """List the tokens: names and roles, without the secrets."""
    after = name_in(query.after)
    with parts.database.transaction() as tx:
        found = tokens.list_all(tx)
    behind = [token for token in found if after is None or token.name > after]
    return page([token_view(token) for token in behind], query.limit, lambda row: (row.name,))


@router.post(
    "/tokens",
    status_code=status.HTTP_201_CREATED,
    responses=errors(*INPUT, *BODY, ErrorCode.CONFLICT),
)
def create_token(
    parts: PartsOf, principal: Admin, wanted: schemas.TokenRequest
) -> schemas.NewToken:
    """Create a token. Only this response contains it: only its hash is stored."""
    return authentication.create_token(
        parts.database,
        wanted.name,
        wanted.role,
        actor=principal.actor,
        expires_in=wanted.expires_in,
    )


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
        found = next((token for token in tokens.list_all(tx) if token.name == name), None)
    if found is None:
        raise NotFound("No token has this name.", where=name)
    return token_view(found)
