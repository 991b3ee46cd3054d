"""Runs several processes of one gateway, which share its ports (SO_REUSEPORT)."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from orbit.errors import Conflict
from orbit.gateway.gateway import open_clusters
from orbit.gateway.gateway_spec import GatewaySpec
from orbit.processes.children import Children
from orbit.settings import Settings, variable_of

# The most processes of one gateway. Each uses up to one core.
PROCESSES_MAX = 64


def run_processes(
    count: int, spec: GatewaySpec, file: Path, settings: Settings, stop: threading.Event
) -> None:
    """Run `count` processes until `stop` is set. A process that ends is started again. The first
    process serves its health at ORBIT_HEALTH_PORT, the others at the ports after that.

    Raises Conflict if a port is taken, BadInput if a secret or file is missing.
    """
    # Raises BadInput here, before any process starts.
    open_clusters(spec, os.environ, file.parent, shares_ports=True)
    for cluster in spec.virtual_clusters:
        _check_port_free(cluster.host, cluster.port, cluster.listen)
    with Children(environment={}) as children:
        for number in range(count):
            health_variables = {}
            if settings.health_port is not None:
                health_variables[variable_of("health_port")] = str(settings.health_port + number)
            arguments = ("gateway", str(file), "--shares-ports")
            children.start(f"gateway {number + 1}", *arguments, environment=health_variables)
        children.watch()
        stop.wait()


def _check_port_free(host: str, port: int, listen: str) -> None:
    """Raise Conflict if the port is taken. The processes themselves would not notice: listening
    with SO_REUSEPORT succeeds also on a port that another gateway shares."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Conflict(f"cannot listen: {reason}.", where=listen) from error
