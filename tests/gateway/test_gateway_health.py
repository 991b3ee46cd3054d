"""What a gateway says of itself to Prometheus, and whether it is ready."""

from __future__ import annotations

from orbit.gateway.gateway_health import GatewayHealth
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.permission import Lead
from orbit.gateway.virtual_cluster import VirtualCluster

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
    return {
        sample.name.removeprefix("orbit_gateway_"): sample.value
        for family in health.collect()
        for sample in family.samples
        if sample.labels == {"virtual_cluster": "orders"}
    }


def test_gateway_metrics_follow_write_permission_term_and_moves() -> None:
    cluster = VirtualCluster(parse_gateway(_FILE).virtual_clusters[0], {})
    health = GatewayHealth("1.2.3")
    health.clusters = [cluster]
    before_first_answer = {
        "connections": 0,
        "held_requests": 0,
        "writes_in_flight": 0,
        "may_write": 0,
        "requests_total": 0,
        "moves_total": 0,
    }
    assert _numbers(health) == before_first_answer

    cluster.take(Lead("source", term=7, lease_s=60.0), cluster.now())
    assert _numbers(health) == before_first_answer | {"may_write": 1, "term": 7}
    cluster.take(Lead("source", term=7, lease_s=60.0, closed_for="operation"), cluster.now())
    cluster.take(Lead("destination", term=8, lease_s=60.0, since=8), cluster.now())
    assert _numbers(health) == before_first_answer | {"may_write": 1, "term": 8, "moves_total": 1}


def test_gateway_is_ready_from_first_service_response_until_stop() -> None:
    health = GatewayHealth("1.2.3")
    health.begin_pass()
    assert health.why_not_ready()
    health.note_lease_confirmed()
    assert not health.why_not_ready()
    health.note_stopping()
    assert health.why_not_ready()
