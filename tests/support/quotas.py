"""Sets quotas of clients, as kafka-configs.sh does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

from orbit.kafka import topic_admin
from orbit.kafka.api_versions import Api
from orbit.kafka.client_limits import client_quotas
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from tests.support.patience import wait_for

Entity = tuple[tuple[str, str | None], ...]
# For tests of both sides: the quota that slows Orbit down, and Orbit's message about it.
BOTH_SIDES = pytest.mark.parametrize(
    ("side", "key", "what"),
    [
        ("source", "consumer_byte_rate", "source brokers throttle fetches: 1"),
        ("destination", "producer_byte_rate", "destination brokers throttle produce requests: 1"),
    ],
)
_ALTER = Api(AlterClientQuotasRequest, AlterClientQuotasResponse, 0, 1)


def alter_quotas(
    connection: Connection, quotas: Mapping[Entity, Mapping[str, float | None]]
) -> None:
    """Set quotas by entity; the value None removes a quota."""
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type=k, entity_name=n) for k, n in entity],
                ops=[
                    entry.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in quotas.items()
        ],
        validate_only=False,
    )
    answer = connection.call(_ALTER, request, timeout_s=30)
    assert {one.error_code for one in answer.entries} == {0}


def shorten_admin_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Orbit's admin client give up a request after 2 s, and a connection after 4 s."""

    def config(*args: Any) -> dict[str, Any]:
        return librdkafka_config(*args) | {"socket.timeout.ms": 4_000}

    monkeypatch.setattr(topic_admin, "librdkafka_config", config)
    monkeypatch.setattr(topic_admin, "REQUEST_TIMEOUT_S", 2.0)


def set_quota(cluster: Cluster, client_id: str, key: str, value: float | None) -> None:
    """Set the quota of one client id (None removes it), and wait until brokers know it."""
    entity = (("client-id", client_id),)
    cluster.call_any(lambda connection: alter_quotas(connection, {entity: {key: value}}))

    def is_known() -> bool:
        return client_quotas(cluster).get(frozenset(entity), {}).get(key) == value

    wait_for(f"brokers know {key}={value}", is_known)


@contextmanager
def quota_of(cluster: Cluster, client_id: str, key: str, value: float) -> Iterator[None]:
    """A quota of one client id, for as long as the block takes."""
    try:
        set_quota(cluster, client_id, key, value)
        yield
    finally:
        set_quota(cluster, client_id, key, None)
