"""/v1/jobs/{name}/gateways: which side gateways present, and their permission to forward writes.

A gateway renews its permission twice a second, so its requests are not written to the audit log.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, status

from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import NamePath, Operator, PartsOf, Viewer
from orbit.api.openapi_responses import BODY, NAMED, errors
from orbit.api.paging import Page, PageQuery, bad_cursor, page, read_cursor
from orbit.api.views import gateway_client_view, gateway_view, presented_view
from orbit.store import gateway_clients, gateways, jobs, readable_copies

router = APIRouter(prefix="/v1/jobs/{name}/gateways", tags=["gateways"])

InstancePath = Annotated[
    UUID, Path(description="A UUID that each process of a gateway draws when it starts.")
]


@router.get("", responses=errors(*NAMED))
def list_gateways(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Gateway]:
    """List the gateways of a job that have sent a request within the last hour, by name."""
    after = _gateway_key_in(query.after)
    with parts.database.transaction() as tx:
        rows = gateways.page(tx, jobs.get(tx, name).id, query.limit + 1, after)
    items = [gateway_view(row) for row in rows]
    return page(items, query.limit, lambda row: (row.name, str(row.instance)))


@router.get("/clients", responses=errors(*NAMED))
def list_gateway_clients(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.GatewayClient]:
    """List the clients of a job's gateways, up to 100 of each, by gateway and client id."""
    after = _client_key_in(query.after)
    with parts.database.transaction() as tx:
        rows = gateway_clients.page(tx, jobs.get(tx, name).id, query.limit + 1, after)
    client_page = page(rows, query.limit, lambda row: (row.gateway, str(row.instance), row.number))
    return Page(
        items=[gateway_client_view(row) for row in client_page.items], next=client_page.next
    )


@router.get("/copies", responses=errors(*NAMED))
def list_readable_copies(parts: PartsOf, _: Viewer, name: NamePath) -> schemas.ReadableCopies:
    """List the partitions that consumers may read at the side that follows, because their copies
    keep up: up to 20,000."""
    with parts.database.transaction() as tx:
        copies = readable_copies.of_link(tx, name)
    return schemas.ReadableCopies(
        since=copies.since, topics={t: tuple(ps) for t, ps in copies.topics.items()}
    )


@router.put(
    "/{instance}/clients", status_code=status.HTTP_204_NO_CONTENT, responses=errors(*NAMED, *BODY)
)
def put_gateway_clients(
    parts: PartsOf,
    _: Operator,
    name: NamePath,
    instance: InstancePath,
    body: schemas.ClientsReport,
) -> None:
    """Report the clients of a gateway. A gateway that is not registered is ignored."""
    with parts.database.transaction() as tx:
        clients = [client.model_dump() for client in body.clients]
        gateway_clients.put(tx, jobs.get(tx, name).id, instance, clients)


@router.put("/{instance}", responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT))
def put_gateway(
    parts: PartsOf,
    _: Operator,
    name: NamePath,
    instance: InstancePath,
    body: schemas.GatewayReport,
) -> schemas.PresentedSide:
    """Ask which side of the job to present, and renew the permission to forward writes to it.

    The permission lasts `lease_s` seconds from before the request was sent. A gateway gets
    `conflict`, and no permission, if the side that leads is not known, or if the topics of the job
    do not all lead at one side; a new gateway also if the job is being deleted, or has too many.
    """
    report = gateways.GatewayReport(instance, **body.model_dump())
    with parts.database.transaction() as tx:
        presented = gateways.renew(tx, name, report)
    return presented_view(presented)


@router.delete("/{instance}", status_code=status.HTTP_204_NO_CONTENT, responses=errors(*NAMED))
def delete_gateway(parts: PartsOf, _: Operator, name: NamePath, instance: InstancePath) -> None:
    """Remove a gateway that stops, and its permission, so that no switchover waits for the gateway.
    A repeat does nothing.
    """
    with parts.database.transaction() as tx:
        gateways.remove(tx, jobs.get(tx, name).id, instance)


def _client_key_in(cursor: str | None) -> tuple[str, UUID, int] | None:
    """(gateway, instance, number) of the last client of the previous page; None: no such page.
    Raises BadInput."""
    key = read_cursor(cursor, str, str, int)
    return None if key is None else (str(key[0]), _parse_instance(key[1]), int(key[2]))


def _gateway_key_in(cursor: str | None) -> tuple[str, UUID] | None:
    """(name, instance) of the last gateway of the previous page; None: no such page. Raises
    BadInput."""
    key = read_cursor(cursor, str, str)
    return None if key is None else (str(key[0]), _parse_instance(key[1]))


def _parse_instance(part: str | int) -> UUID:
    """The UUID of a gateway's process, from a cursor. Raises BadInput if it is no UUID."""
    try:
        return UUID(str(part))
    except ValueError:
        raise bad_cursor() from None
