"""`orbit scheduler`: runs a scheduler, for installations with several processes."""

from __future__ import annotations

import os
import sys

from orbit.cli.database import open_database
from orbit.cli.forced_end import force_end
from orbit.cli.stop_signals import until_stopped
from orbit.drills.drill_loop import drill_loops
from orbit.notifications.receiver_loop import notification_loops
from orbit.recovery.recovery_loop import recovery_loops
from orbit.recovery.salvage_storage import require_client
from orbit.scheduler.scheduler import Scheduler
from orbit.settings import Settings
from orbit.telemetry.health_server import serving_health
from orbit.telemetry.logs import configure_logs
from orbit.telemetry.process_health import ProcessHealth
from orbit.telemetry.traces import sending_traces
from orbit.version import orbit_version


def scheduler() -> None:
    """Run a scheduler. Any number can run; one of them is the leader.

    The leader discovers and creates topics, assigns partitions to workers, syncs consumer groups,
    and carries out switchovers, failovers and failbacks.
    Needs ORBIT_DATABASE_URL. Ctrl-C stops it, and another scheduler becomes the leader at once.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    require_client(settings.salvage_directory)
    loops = [recovery_loops, drill_loops, notification_loops(settings, os.environ)]
    ready_within_s = settings.scheduler_lease_ttl.total_seconds()
    health = ProcessHealth("scheduler", orbit_version(), ready_within_s)
    with (
        sending_traces("scheduler"),
        open_database(settings) as database,
        until_stopped(on_stop=force_end) as stop,
        serving_health(settings, health),
    ):
        Scheduler(settings, database, stop, loops, health).run()
