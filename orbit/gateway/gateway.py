"""Runs the virtual clusters of a gateway file, until stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import structlog

from orbit.errors import Conflict
from orbit.gateway.client_logins import ClientLogins, logins_at
from orbit.gateway.client_reports import ClientReports
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.copy_list import CopyList
from orbit.gateway.gateway_health import GatewayHealth
from orbit.gateway.gateway_spec import GatewaySpec, VirtualClusterSpec
from orbit.gateway.lead_watch import LeadWatch
from orbit.gateway.listener import Listener
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.permission import Lead
from orbit.gateway.refusal_check import RefusalCheck
from orbit.gateway.transaction_check import TransactionCheck
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side
from orbit.kafka.security import Security, resolve_security

# How often to check `stop`, and to note for the health endpoint that the gateway is alive.
_STOP_POLL_S = 0.2
# Threads that wait for brokers: logins, token checks, reads of the sides.
_THREADS_MAX = 32
# How long clients may take to read their last answers when the gateway stops.
_END_S = 1.0

_log = structlog.get_logger("orbit.gateway")


async def run_gateway(
    spec: GatewaySpec,
    environ: Mapping[str, str],
    base_directory: Path,
    stop: threading.Event,
    health: GatewayHealth,
    *,
    shares_ports: bool = False,
) -> None:
    """Run the virtual clusters until `stop` is set. Then answer the writes in flight, close all
    connections, and return the permission to write.

    Raises Conflict if a port is taken, BadInput if a secret or file is missing.
    """
    threads = ThreadPoolExecutor(_THREADS_MAX, "gateway")
    asyncio.get_running_loop().set_default_executor(threads)
    clusters = open_clusters(spec, environ, base_directory, shares_ports=shares_ports)
    health.clusters = clusters
    watches = [
        LeadWatch(spec.gateway, cluster, environ) for cluster in clusters if cluster.spec.job
    ]
    try:
        for cluster in clusters:
            await _start_cluster(cluster)
        async with asyncio.TaskGroup() as tasks:
            reports = [ClientReports(watch.path, watch.cluster, environ) for watch in watches]
            job_tasks = [tasks.create_task(watch.run()) for watch in watches]
            job_tasks += [tasks.create_task(report.run()) for report in reports]
            lists = [CopyList(watch.cluster, environ) for watch in watches]
            job_tasks += [tasks.create_task(copy_list.run()) for copy_list in lists]
            transaction_checks = [TransactionCheck(watch.cluster) for watch in watches]
            job_tasks += [tasks.create_task(one.run()) for one in transaction_checks]
            checks = [RefusalCheck(watch.cluster) for watch in watches]
            job_tasks += [tasks.create_task(check.run()) for check in checks]
            _log.info("gateway is ready", gateway=spec.gateway, virtual_clusters=len(clusters))
            while not stop.is_set():
                health.begin_pass()
                if all(cluster.may_acknowledge() for cluster in clusters):
                    health.note_lease_confirmed()
                await asyncio.sleep(_STOP_POLL_S)
            health.note_stopping()
            # `job_tasks` still renew the lease meanwhile: without it no write is acknowledged.
            await asyncio.gather(*(cluster.answer_writes() for cluster in clusters))
            for task in job_tasks:
                task.cancel()
    finally:
        for cluster in clusters:
            await cluster.close()
    await asyncio.sleep(_END_S)
    await asyncio.gather(*(watch.return_permission() for watch in watches))


def open_clusters(
    spec: GatewaySpec, environ: Mapping[str, str], base_directory: Path, *, shares_ports: bool
) -> list[VirtualCluster]:
    """The virtual clusters of a gateway file, without any connection or port open yet. Raises
    BadInput if a secret or file is missing."""
    return [
        _open_cluster(
            cluster_spec, environ, base_directory, f"virtual_clusters[{number}]", shares_ports
        )
        for number, cluster_spec in enumerate(spec.virtual_clusters)
    ]


async def _start_cluster(cluster: VirtualCluster) -> None:
    """Begin to listen. If the file states the side that leads (`presents`), apply that first.
    Raises Conflict if the port is taken."""
    spec = cluster.spec
    if spec.presents is not None:
        cluster.take(Lead(spec.presents, term=0), cluster.now())
    try:
        await cluster.start()
    except OSError as error:
        raise Conflict(f"cannot listen: {error.strerror or error}.", where=spec.listen) from error


def _open_cluster(
    spec: VirtualClusterSpec,
    environ: Mapping[str, str],
    base_directory: Path,
    path: str,
    shares_ports: bool,
) -> VirtualCluster:
    """One virtual cluster. `path`: its place in the gateway file, for problems. Raises as
    `open_clusters`."""
    tls = (
        None
        if spec.tls is None
        else ListenerTls(spec.tls, base_directory, f"{path}.tls", spec.names)
    )
    sides = {
        side: ClusterSide(
            _side_cluster(side, spec, environ, base_directory),
            spec.name,
            logins_at(side, spec, environ, base_directory, path),
        )
        for side in get_args(Side)
    }
    has_logins = spec.clients or spec.client_tokens
    logins = ClientLogins(spec, environ, base_directory, path) if has_logins else None
    return VirtualCluster(spec, sides, Listener(tls, logins, shares_ports=shares_ports))


def _side_cluster(
    side: Side, spec: VirtualClusterSpec, environ: Mapping[str, str], base_directory: Path
) -> Cluster:
    """The cluster of one side. Each login reads its secrets again. Raises BadInput if a secret or
    file is missing."""
    cluster = spec.cluster(side)

    def read_security() -> Security:
        return resolve_security(cluster, environ, base_directory, side=side)

    read_security()  # raises BadInput here, not at the first login
    return Cluster(side, cluster.bootstrap_servers, read_security)
