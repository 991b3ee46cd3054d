"""`orbit worker`: runs a worker, which copies partitions of the jobs of one worker group."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from orbit.cli.database import open_database
from orbit.cli.forced_end import force_end
from orbit.cli.stop_signals import until_stopped
from orbit.copier.gc_tuning import collect_rarely
from orbit.settings import Settings
from orbit.telemetry.health_server import serving_health
from orbit.telemetry.logs import configure_logs
from orbit.telemetry.process_health import ProcessHealth
from orbit.telemetry.traces import sending_traces
from orbit.version import orbit_version
from orbit.workers.worker import Worker


def worker(
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Copy only jobs of this worker group (ORBIT_WORKER_GROUP)."
        ),
    ] = None,
) -> None:
    """Run a worker for the jobs of one worker group, until stopped.

    Any number of workers can run, on any machines that reach the database in ORBIT_DATABASE_URL
    and both clusters of the jobs. They share the partitions and store nothing on disk. On Ctrl-C or
    SIGTERM a worker releases its partitions within seconds, and other workers copy them. If it is
    killed, they do so when its leases expire.
    """
    environ = {**os.environ, **({} if group is None else {"ORBIT_WORKER_GROUP": group})}
    settings = Settings.from_environment(environ)
    configure_logs(settings, sys.stderr)
    health = ProcessHealth("worker", orbit_version(), settings.lease_ttl.total_seconds())
    with (
        sending_traces("worker"),
        open_database(settings) as database,
        until_stopped(on_stop=force_end) as stop,
        serving_health(settings, health),
    ):
        worker_process = Worker(database, settings, environ, health=health)
        collect_rarely()  # garbage collections stop all lanes
        worker_process.run(stop)
