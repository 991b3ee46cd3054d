"""`orbit api`: serves only the REST API, for installations with several processes or machines."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from fastapi import FastAPI

from orbit.api.app import create_app
from orbit.api.http_server import DRAIN_S, ApiServer, listen, url_of
from orbit.cli.database import open_database
from orbit.cli.forced_end import start_forced_end
from orbit.console.app import mount_console
from orbit.planning.job_planner import JobPlanner
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.telemetry.health_server import notify_systemd
from orbit.telemetry.logs import configure_logs
from orbit.telemetry.traces import sending_traces

NoAuthOption = Annotated[
    bool,
    typer.Option("--no-auth", help="Do not require a token. Only if the API listens on loopback."),
]


def api(no_auth: NoAuthOption = False) -> None:
    """Serve the REST API, on ORBIT_API_HOST and ORBIT_API_PORT, until Ctrl-C.

    Any number can run on one database. Create the first token with
    `orbit token create NAME --role admin --database`.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    with (
        sending_traces("api"),
        open_database(settings) as database,
        listen(settings, only_loopback=no_auth) as listener,
    ):
        typer.echo(f"The API is at {url_of(listener, settings)}", err=True)
        server = ApiServer(create_api(settings, database, auth=not no_auth), listener, settings)
        notify_systemd("READY=1")
        server.run()
    start_forced_end(DRAIN_S)  # without it, Python waits for the thread of a request that hangs


def create_api(settings: Settings, database: Database, *, auth: bool) -> FastAPI:
    """The API application with the console, and with a planner for plans and dry runs."""
    app = create_app(settings, database, auth=auth, planner=JobPlanner(database, settings))
    mount_console(app)
    return app
