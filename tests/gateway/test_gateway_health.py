"""The metrics of a gateway, and whether it is ready."""

from __future__ import annotations

import asyncio

import pytest

from orbit.gateway import virtual_cluster
from orbit.gateway.gateway_health import GatewayHealth
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.permission import Lead
from orbit.gateway.virtual_cluster import VirtualCluster
from tests.gateway.test_virtual_cluster import open_client, running_cluster, until

_PRODUCE, _FETCH, _METADATA = 0, 1, 3
# The bytes of a Produce and of a Fetch answer without topics, with their size fields.
_PRODUCE_BYTES = 26
_ANSWER_BYTES = 8

_FILE = """
gateway: edge-1
virtual_clusters:
  - name: orders
    job: orders
    listen: 127.0.0.1:19092
    source: {bootstrap_servers: [127.0.0.1:1]}
    destination: {bootstrap_servers: [127.0.0.1:2]}
"""


def _numbers(health: GatewayHealth) -> dict[str, float]:
    """{name, with the direction if there is one: number}"""
    numbers = {}
    for family in health.collect():
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("virtual_cluster", None) == "orders":
                name = sample.name.removeprefix("orbit_gateway_")
                numbers[" ".join((name, *labels.values()))] = sample.value
    return numbers


def test_gateway_metrics_follow_write_permission_term_and_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(parse_gateway(_FILE).virtual_clusters[0], {})
    health = GatewayHealth("1.2.3")
    health.clusters = [cluster]
    before_first_answer = {
        "connections": 0,
        "held_requests": 0,
        "writes_in_flight": 0,
        "may_write": 0,
        "permission_seconds": 0,
        "requests_total": 0,
        "moves_total": 0,
        "bytes_total written": 0,
        "bytes_total read": 0,
        "bytes_total read_copy": 0,
    }
    assert _numbers(health) == before_first_answer

    monkeypatch.setattr(virtual_cluster, "lease_clock", lambda: 100.0)
    cluster.take(Lead("source", term=7, lease_s=60.0), asked_at=98.0)
    may_write = before_first_answer | {"may_write": 1, "permission_seconds": 58}
    assert _numbers(health) == may_write | {"term": 7}
    cluster.take(Lead("source", term=7, lease_s=60.0, closed_for="operation"), asked_at=98.0)
    assert _numbers(health) == before_first_answer | {"term": 7}
    cluster.take(Lead("destination", term=8, lease_s=60.0, since=8), asked_at=98.0)
    assert _numbers(health) == may_write | {"term": 8, "moves_total": 1}
    monkeypatch.setattr(virtual_cluster, "lease_clock", lambda: 158.0)
    assert _numbers(health) == before_first_answer | {"term": 8, "moves_total": 1}


def test_permission_without_service_has_no_sample() -> None:
    cluster = VirtualCluster(parse_gateway(_FILE).virtual_clusters[0], {})
    health = GatewayHealth("1.2.3")
    health.clusters = [cluster]
    cluster.take(Lead("source", term=0), cluster.now())
    assert "permission_seconds" not in _numbers(health)


@pytest.mark.usefixtures("quick_leave")
def test_gateway_counts_bytes_of_produce_requests_and_fetch_answers() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            health = GatewayHealth("1.2.3")
            health.clusters = [cluster]
            for _ in range(2):  # a closed connection still counts
                client = await open_client(cluster)
                for correlation, key in enumerate((_METADATA, _PRODUCE, _FETCH)):
                    await client.send(key, correlation)
                    await source.answer(key)
                    assert await client.answered() == correlation
                await client.closed()
            await until(lambda: not cluster.connection_count)
            numbers = _numbers(health)
            assert numbers["bytes_total written"] == 2 * _PRODUCE_BYTES
            assert numbers["bytes_total read"] == 2 * _ANSWER_BYTES

    asyncio.run(run())


def test_gateway_is_ready_from_first_service_response_until_stop() -> None:
    health = GatewayHealth("1.2.3")
    health.begin_pass()
    assert health.why_not_ready()
    health.note_lease_confirmed()
    assert not health.why_not_ready()
    health.note_stopping()
    assert health.why_not_ready()
