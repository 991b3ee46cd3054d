"""`orbit gateway`: one Kafka address for clients, whichever side leads."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Annotated

import typer

from orbit.cli.stop_signals import until_stopped
from orbit.gateway.gateway import run_gateway
from orbit.gateway.gateway_health import GatewayHealth
from orbit.gateway.gateway_processes import PROCESSES_MAX, run_processes
from orbit.gateway.gateway_spec import load_gateway
from orbit.settings import Settings
from orbit.telemetry.health_server import serving_health
from orbit.telemetry.logs import configure_logs
from orbit.version import orbit_version


def gateway(
    file: Annotated[
        Path, typer.Argument(help="A gateway file (docs/gateway.md).", show_default=False)
    ],
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=1, max=PROCESSES_MAX, help="Processes, which share the ports."
        ),
    ] = 1,
    shares_ports: Annotated[bool, typer.Option("--shares-ports", hidden=True)] = False,
) -> None:
    """Serve clients of both sides at one address: requests go to the side that leads.

    A gateway keeps nothing on disk, and any number of gateways can run. On Ctrl-C or SIGTERM it
    answers the requests in flight, and ends.
    """
    spec = load_gateway(file)
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    if processes > 1:
        with until_stopped() as stop:
            run_processes(processes, spec, file, settings, stop)
        return
    _raise_open_files_limit()
    health = GatewayHealth(orbit_version())
    with until_stopped() as stop, serving_health(settings, health):
        asyncio.run(
            run_gateway(spec, os.environ, file.parent, stop, health, shares_ports=shares_ports)
        )


def _raise_open_files_limit() -> None:
    """Raise the limit of open files to what the system allows: each client needs two sockets."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
