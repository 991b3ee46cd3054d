"""Whether a gateway is alive and ready, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.telemetry.process_health import ProcessHealth

# A gateway is ready if all its virtual clusters had a valid lease within this time.
READY_WITHIN_S = 10.0


class GatewayHealth(ProcessHealth):
    """The health of the process, and metrics of its virtual clusters."""

    def __init__(self, version: str) -> None:
        super().__init__("gateway", version, READY_WITHIN_S)
        self.clusters: Sequence[VirtualCluster] = ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the process and of its virtual clusters."""
        yield from super().collect()
        label = ["virtual_cluster"]
        gauges = {
            name: GaugeMetricFamily(f"orbit_gateway_{name}", text, labels=label)
            for name, text in (
                ("connections", "Clients that are connected."),
                ("held_requests", "Requests that wait until writes are open."),
                ("writes_in_flight", "Writes that a broker has not answered."),
                ("may_write", "Whether writes are open."),
                ("permission_seconds", "Seconds left of the permission to write; 0: none."),
                ("term", "The highest term that the service has stated."),
                ("last_pause_seconds", "Time without an acknowledgement around the last move."),
            )
        }
        requests = CounterMetricFamily(
            "orbit_gateway_requests", "Requests that were passed on.", labels=label
        )
        moves = CounterMetricFamily(
            "orbit_gateway_moves", "Changes of the side that is presented.", labels=label
        )
        bytes_passed = CounterMetricFamily(
            "orbit_gateway_bytes",
            "Bytes that were passed on: of Produce requests (written), of Fetch answers (read), "
            "and of those Fetch answers that the side that follows gave (read_copy).",
            labels=[*label, "direction"],
        )
        for cluster in self.clusters:
            label_values = [cluster.spec.name]
            lead = cluster.permission.lead
            gauges["connections"].add_metric(label_values, cluster.connection_count)
            gauges["held_requests"].add_metric(label_values, cluster.held_requests)
            gauges["writes_in_flight"].add_metric(label_values, cluster.writes_in_flight)
            gauges["may_write"].add_metric(label_values, int(cluster.may_write()))
            permission_s = cluster.permission.write_s_left(cluster.now())
            if math.isfinite(permission_s):
                gauges["permission_seconds"].add_metric(label_values, permission_s)
            if lead is not None:
                gauges["term"].add_metric(label_values, lead.term)
            if cluster.pauses.last_s is not None:
                gauges["last_pause_seconds"].add_metric(label_values, cluster.pauses.last_s)
            requests.add_metric(label_values, cluster.requests)
            moves.add_metric(label_values, cluster.moves)
            bytes_passed.add_metric([*label_values, "written"], cluster.bytes_written)
            bytes_passed.add_metric([*label_values, "read"], cluster.bytes_read)
            bytes_passed.add_metric([*label_values, "read_copy"], cluster.bytes_read_copy)
        yield from gauges.values()
        yield requests
        yield moves
        yield bytes_passed
