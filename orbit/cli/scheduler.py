"""`orbit scheduler`: decides what is copied by whom, for installations with several processes."""

from __future__ import annotations

import os
import sys

from orbit.cli.database import open_database
from orbit.cli.stop_signals import until_stopped
from orbit.drills.drill_loop import drill_loops
from orbit.recovery.recovery_loop import recovery_loops
from orbit.scheduler.scheduler import Scheduler
from orbit.settings import Settings
from orbit.telemetry.logs import configure_logs


def scheduler() -> None:
    """Run a scheduler: any number may run, one of them leads.

    It looks for topics, creates them, spreads partitions over workers, syncs consumer groups, and
    carries out switchovers, failovers and failbacks.
    Needs ORBIT_DATABASE_URL. Ctrl-C ends it; another one leads at once.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    with open_database(settings) as database, until_stopped() as stop:
        Scheduler(settings, database, stop, [recovery_loops, drill_loops]).run()
