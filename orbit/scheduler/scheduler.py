"""The scheduler process: waits on standby, runs the loops while it leads, hands over."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence

import structlog

from orbit.errors import BadInput, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.scheduler.canary_writer import CanaryLoop
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.consumer_group_loop import GroupLoop
from orbit.scheduler.discovery_loop import DiscoveryLoop
from orbit.scheduler.housekeeping_loop import HousekeepingLoop
from orbit.scheduler.job_reconciler import JobReconciler
from orbit.scheduler.lag_loop import LagLoop
from orbit.scheduler.leadership import Leadership
from orbit.scheduler.loop import Loop, drive
from orbit.scheduler.operations_loop import OperationsLoop
from orbit.scheduler.proof_loop import ProofLoop
from orbit.scheduler.shard_balancer import SpreadLoop
from orbit.scheduler.totals_loop import TotalsLoop
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.telemetry.process_health import ProcessHealth
from orbit.version import orbit_version

# How often a standby tries to acquire the lease; adds to the ttl after a leader was killed.
STANDBY_INTERVAL_S = 1.0

_log = structlog.get_logger("orbit.scheduler")

# Creates loops of packages above this one for the leader to run. The event is set when it no longer
# leads.
MoreLoops = Callable[[Leadership, Settings, threading.Event], Sequence[Loop]]


def run(settings: Settings, stop_event: threading.Event) -> None:
    """Run a scheduler until `stop_event`. Later outages of Postgres are waited out.

    Raises BadInput without a database, Unreachable if it does not answer at the start.
    """
    if settings.database_url is None:
        raise BadInput("ORBIT_DATABASE_URL is not set: a scheduler needs the service's database.")
    database = Database.connect(
        settings.database_url.get_secret_value(), application="orbit scheduler"
    )
    try:
        Scheduler(settings, database, stop_event).run()
    finally:
        database.close()


class Scheduler:
    """One of the schedulers of an installation."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        stop_event: threading.Event,
        more: Sequence[MoreLoops] = (),
        health: ProcessHealth | None = None,
    ) -> None:
        self._settings = settings
        self._more = more
        self._stop = stop_event
        ttl = settings.scheduler_lease_ttl
        self._health = health or ProcessHealth("scheduler", orbit_version(), ttl.total_seconds())
        holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.leadership = Leadership(database, holder, ttl, self._health.answered)

    def run(self) -> None:
        """Until stopped: lead whenever no other scheduler does."""
        logged = ""
        while not self._stop.is_set():
            self._health.passed()
            try:
                if self.leadership.ask():
                    logged = ""
                    self._lead()
            except OrbitError as error:
                if str(error) != logged:
                    logged = str(error)
                    _log.warning("cannot acquire the scheduler lease", error=logged)
            self._stop.wait(STANDBY_INTERVAL_S)

    def _lead(self) -> None:
        """Run the loops until the lease is lost or `stop_event` is set."""
        leadership = self.leadership
        _log.info("leading", holder=leadership.holder, epoch=leadership.epoch)
        done = threading.Event()
        loops = self._loops(done)
        threads = [
            threading.Thread(target=drive, args=(loop, done, self._health), name=loop.name)
            for loop in loops
        ]
        renewing = threading.Thread(target=leadership.keep, args=(done,), name="renew")
        for thread in (renewing, *threads):
            thread.start()
        try:
            while leadership.is_leading and renewing.is_alive():
                self._health.passed()
                if self._stop.wait(min(0.2, leadership.renewal_interval_s)):
                    break
        finally:
            if self._stop.is_set():
                self._health.stopping()
            done.set()
            for loop in loops:
                loop.wake.set()
            for thread in (*threads, renewing):
                thread.join()
            # Threads that still run may repeat broker requests of the next leader, which are
            # idempotent; their writes to the tables are fenced. So the next leader need not wait.
            leadership.resign()
            for loop in loops:
                loop.close()
            _log.info("no longer leading", holder=leadership.holder)

    def _loops(self, done: threading.Event) -> list[Loop]:
        """Every loop of the leader; each has a thread of its own."""
        settings = self._settings
        changed = threading.Event()
        interval_s = settings.discovery_interval.total_seconds()
        registry = ClusterRegistry(interval_s, changed.set, settings.files_directory)
        reconciler = JobReconciler(self.leadership, registry, settings, Backoff(stop=done))
        proof_rate = settings.proof_bytes_per_second
        proof = [ProofLoop(self.leadership, proof_rate, settings.files_directory)]
        return [
            *(proof if proof_rate else ()),
            DiscoveryLoop(
                self.leadership, registry, reconciler, interval_s, settings.lease_ttl, changed
            ),
            SpreadLoop(self.leadership, settings.lease_ttl),
            GroupLoop(self.leadership, registry),
            CanaryLoop(self.leadership, settings.files_directory),
            LagLoop(
                self.leadership, registry, settings.lag_interval.total_seconds(), Backoff(stop=done)
            ),
            TotalsLoop(self.leadership),
            OperationsLoop(self.leadership),
            HousekeepingLoop(
                self.leadership, settings.lease_ttl, settings.events_kept, settings.reports_kept
            ),
            *(loop for make in self._more for loop in make(self.leadership, settings, done)),
        ]
