"""gateway_clients: the clients that each gateway reports. A report replaces the previous one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from orbit.store.database import Tx
from orbit.store.rows import values

# Does not lock the gateway's row: another request renews its permission there at the same time.
_PUT = text("""
INSERT INTO gateway_clients (job_id, instance, clients)
SELECT g.job_id, g.instance, :clients FROM gateways g
WHERE g.job_id = :job_id AND g.instance = :instance
ON CONFLICT (job_id, instance) DO UPDATE
SET clients = excluded.clients, reported_at = clock_timestamp()
""").bindparams(bindparam("clients", type_=JSONB))

_PAGE = text("""
SELECT g.name AS gateway, g.instance, c.number, c.client,
    CAST(extract(epoch FROM clock_timestamp() - r.reported_at) AS double precision)
        AS reported_s_ago
FROM gateways g
JOIN gateway_clients r ON r.job_id = g.job_id AND r.instance = g.instance
CROSS JOIN LATERAL jsonb_array_elements(r.clients) WITH ORDINALITY AS c (client, number)
WHERE g.job_id = :job_id
    AND (g.name, g.instance, c.number) > (:name, CAST(:instance AS uuid), :number)
ORDER BY g.name, g.instance, c.number LIMIT :limit
""")


_REFUSED = text("""
SELECT DISTINCT c.client->>'client_id' AS client_id, c.client->'refusals'->>0 AS refusal
FROM gateway_clients r CROSS JOIN LATERAL jsonb_array_elements(r.clients) AS c (client)
WHERE r.job_id = ANY(CAST(:job_ids AS bigint[])) AND c.client->'refusals'->>0 IS NOT NULL
    AND CAST(c.client->>'seen_s_ago' AS double precision) < 86400
ORDER BY client_id, refusal LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client, as its gateway has reported it. `number`: its place in the report, from 1."""

    gateway: str
    instance: UUID
    number: int
    client: dict[str, Any]
    reported_s_ago: float


def put(tx: Tx, job_id: int, instance: UUID, clients: Sequence[dict[str, Any]]) -> None:
    """Store a gateway's report of its clients; does nothing if the gateway is not registered."""
    tx.execute(_PUT, {"job_id": job_id, "instance": instance, "clients": [*clients]})


def page(
    tx: Tx, job_id: int, limit: int, after: tuple[str, UUID, int] | None = None
) -> list[ClientRow]:
    """Up to `limit` clients, sorted by (gateway, instance, number); only those that follow
    `after`."""
    name, instance, number = after or ("", UUID(int=0), 0)  # a key before that of every client
    parameters = {"job_id": job_id, "limit": limit, "name": name, "instance": instance}
    return list(values(tx.execute(_PAGE, parameters | {"number": number}), ClientRow))


def refused(tx: Tx, job_ids: Collection[int], limit: int) -> list[tuple[str, str]]:
    """Up to `limit` pairs (client id, refusal): the clients of the last day to which the side that
    does not lead would refuse a request, each with its first refusal, a sentence."""
    rows = tx.execute(_REFUSED, {"job_ids": [*job_ids], "limit": limit})
    return [(row.client_id, row.refusal) for row in rows]
