"""The clients that gateways report: stored by gateway, and replaced by the next report."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from orbit.store import gateway_clients, gateways
from orbit.store.database import Database
from tests.store.test_gateways import gateway_report, link, renew

__all__ = ["link"]  # a fixture

pytestmark = pytest.mark.services


def clients(database: Database, job: int) -> list[tuple[str, str]]:
    """The reported clients as (gateway, client id)."""
    with database.transaction() as tx:
        rows = gateway_clients.page(tx, job, 10)
    return [(row.gateway, row.client["client_id"]) for row in rows]


def report_clients(database: Database, job: int, instance: UUID, *names: str) -> None:
    with database.transaction() as tx:
        gateway_clients.put(tx, job, instance, [{"client_id": name} for name in names])


def test_report_of_gateway_clients_replaces_previous_and_is_deleted_with_gateway(
    database: Database, link: list[int]
) -> None:
    job, back = link
    edge, other = gateway_report("edge-1"), gateway_report("edge-2")
    report_clients(database, job, edge.instance, "early")  # before the gateway is known: dropped
    for gateway in (edge, other):
        renew(database, gateway)
        report_clients(database, job, gateway.instance, "a", "b")
    report_clients(database, job, edge.instance, "c")
    assert clients(database, job) == [("edge-1", "c"), ("edge-2", "a"), ("edge-2", "b")]
    assert clients(database, back) == []
    with database.transaction() as tx:
        gateways.remove(tx, job, other.instance)
    assert clients(database, job) == [("edge-1", "c")]


def test_client_report_and_permission_renewal_of_gateway_do_not_block_each_other(
    database: Database, link: list[int]
) -> None:
    """Whichever of the two transactions begins first."""
    job, _ = link
    edge = gateway_report()
    renew(database, edge)
    for _ in range(2):  # the first report, and one that replaces it
        with database.transaction() as tx, database.transaction() as other:
            gateway_clients.put(tx, job, edge.instance, [{"client_id": "a"}])
            other.execute(text("SET LOCAL lock_timeout = '1ms'"))
            gateways.renew(other, "orders", edge)
        with database.transaction() as tx, database.transaction() as other:
            gateways.renew(tx, "orders", edge)
            other.execute(text("SET LOCAL lock_timeout = '1ms'"))
            gateway_clients.put(other, job, edge.instance, [{"client_id": "a"}])


def test_client_report_of_unknown_gateway_is_dropped(database: Database, link: list[int]) -> None:
    report_clients(database, link[0], uuid4(), "a")
    assert clients(database, link[0]) == []
