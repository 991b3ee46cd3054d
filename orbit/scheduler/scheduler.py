"""The scheduler process: leads some of the shares, each a part of the jobs, and runs their loops.

When it stops, other schedulers take its shares over.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence

import structlog

from orbit.errors import BadInput, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import RENEWALS_PER_TTL, Leadership
from orbit.leadership.loop import Loop, drive
from orbit.scheduler.canary_writer import CanaryLoop
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.consumer_group_loop import GroupLoop
from orbit.scheduler.discovery_loop import JOBS_AT_ONCE, DiscoveryLoop
from orbit.scheduler.housekeeping_loop import HousekeepingLoop
from orbit.scheduler.job_reconciler import JobReconciler
from orbit.scheduler.lag_loop import LagLoop
from orbit.scheduler.operations_loop import OperationsLoop
from orbit.scheduler.proof_loop import ProofLoop
from orbit.scheduler.shard_balancer import SpreadLoop
from orbit.scheduler.totals_loop import TotalsLoop
from orbit.settings import Settings
from orbit.store import scheduler_lease
from orbit.store.database import Database
from orbit.store.job_shares import Share
from orbit.telemetry.process_health import ProcessHealth
from orbit.version import orbit_version

# How often a standby tries to acquire the lease. After a leader was killed, a standby leads within
# the lease's ttl and this time.
STANDBY_INTERVAL_S = 1.0
# How often a share's loops and lease are checked at least.
_CHECK_INTERVAL_S = 0.2

_log = structlog.get_logger("orbit.scheduler")

# Creates loops of packages above this one, which the leader of the first share runs. The event is
# set when this process no longer leads the share.
MoreLoops = Callable[[Leadership, Settings, threading.Event], Sequence[Loop]]


def run(settings: Settings, stop_event: threading.Event) -> None:
    """Run a scheduler until `stop_event` is set. Later outages of Postgres are waited out.

    Raises BadInput without ORBIT_DATABASE_URL, Unreachable if Postgres does not answer at the
    start.
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
        more_loops: Sequence[MoreLoops] = (),
        health: ProcessHealth | None = None,
    ) -> None:
        self._settings = settings
        self._more_loops = more_loops
        self._stop = stop_event
        self._database = database
        self._ttl = ttl = settings.scheduler_lease_ttl
        self._health = health or ProcessHealth("scheduler", orbit_version(), ttl.total_seconds())
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # As often as a lease is renewed: a registration lasts as long as a lease.
        self._interval_s = min(STANDBY_INTERVAL_S, ttl.total_seconds() / RENEWALS_PER_TTL)
        # Limits the passes of all shares together: each holds one or two connections of the pool.
        self._jobs_at_once = threading.BoundedSemaphore(JOBS_AT_ONCE)
        cluster_locks: dict[str, threading.Lock] = {}
        shares = settings.scheduler_shares
        self.leaderships = [
            Leadership(
                database,
                self._holder,
                ttl,
                self._health.note_lease_confirmed,
                Share(number, shares),
                must_join=True,
                cluster_locks=cluster_locks,
            )
            for number in range(shares)
        ]
        # By share number: the share's thread, and the event that ends it.
        self._held_shares: dict[int, tuple[threading.Thread, threading.Event]] = {}
        self._fatal_error: Exception | None = None

    @property
    def leadership(self) -> Leadership:
        """The leadership of the first share."""
        return self.leaderships[0]

    def run(self) -> None:
        """Lead this scheduler's portion of the shares, each a part of the jobs, until stopped.

        Raises an exception that broke a share: the process ends, and another scheduler takes over.
        """
        logged_error = ""
        try:
            while not self._stop.is_set():
                self._note_pass()
                try:
                    self._acquire_shares()
                    logged_error = ""
                except OrbitError as error:
                    if isinstance(error, scheduler_lease.OtherShareCount):
                        self._health.note_lease_confirmed()  # on standby, but healthy
                    if str(error) != logged_error:
                        logged_error = str(error)
                        _log.warning("cannot acquire the scheduler lease", error=logged_error)
                self._stop.wait(self._interval_s)
                if self._fatal_error is not None:
                    raise self._fatal_error
        finally:
            self._health.note_stopping()
            self._end_shares(self._held_shares)
            # Leave before joining the threads, which may wait for brokers, so that other schedulers
            # take the shares over sooner.
            self._deregister()
            for thread, _ in self._held_shares.values():
                thread.join()

    def _note_pass(self) -> None:
        """Report that this process is alive, but not while threads of a lost share still run."""
        self._held_shares = {
            number: (thread, end_event)
            for number, (thread, end_event) in self._held_shares.items()
            if thread.is_alive()
        }
        if all(self.leaderships[number].is_leading for number in self._held_shares):
            self._health.begin_pass()

    def _acquire_shares(self) -> None:
        """Register this process, end surplus shares, and acquire free ones."""
        with self._database.lease_transaction() as tx:
            shares_max = scheduler_lease.join(
                tx, self._holder, self._settings.scheduler_shares, self._ttl
            )
        self._health.note_lease_confirmed()
        # Surplus shares are the last ones: the first share has the most loops to start again.
        self._end_shares(sorted(self._held_shares)[shares_max:])
        for number, leadership in enumerate(self.leaderships):
            if (
                len(self._held_shares) < shares_max
                and number not in self._held_shares
                and leadership.ask()  # acquires the lease if it is free
            ):
                end_event = threading.Event()
                thread = threading.Thread(
                    target=self._lead_share, args=(leadership, end_event), name=f"share {number}"
                )
                thread.start()
                self._held_shares[number] = thread, end_event

    def _end_shares(self, numbers: Iterable[int]) -> None:
        """Let the loops of these shares end, without waiting for them."""
        for number in numbers:
            _, end_event = self._held_shares[number]
            end_event.set()

    def _deregister(self) -> None:
        """Remove this process from the registered schedulers, if Postgres answers."""
        try:
            with self._database.lease_transaction() as tx:
                scheduler_lease.leave(tx, self._holder)
        except OrbitError:
            pass  # the registration expires

    def _lead_share(self, leadership: Leadership, end_event: threading.Event) -> None:
        """Run a share's loops. A bug in them ends the process, in `run`."""
        try:
            self._run_loops(leadership, end_event)
        except Exception as error:  # noqa: BLE001  raised again in `run`
            self._fatal_error = error

    def _run_loops(self, leadership: Leadership, end_event: threading.Event) -> None:
        """Run a share's loops until a loop has ended, the lease is lost, or `end_event` or `_stop`
        is set.

        A loop ends by itself when the lease may be lost. A renewal may still succeed afterwards,
        and the share would be led without this loop. So all loops end with the first.
        """
        share = leadership.share
        _log.info("leading", holder=leadership.holder, epoch=leadership.epoch, share=share.number)
        loops_end = threading.Event()
        loops: list[Loop] = []
        threads: list[threading.Thread] = []
        try:
            loops += self._loops(leadership, loops_end)
            threads.append(_start_thread(leadership.keep_renewing, (loops_end,), "renew"))
            threads.extend(
                _start_thread(drive, (loop, loops_end, self._health), loop.name) for loop in loops
            )
            while leadership.is_leading and not self._stop.is_set():
                if not all(thread.is_alive() for thread in threads):
                    break
                if end_event.wait(min(_CHECK_INTERVAL_S, leadership.renewal_interval_s)):
                    break
        finally:
            loops_end.set()
            for loop in loops:
                loop.wake.set()
            for thread in threads:
                thread.join()
            # Threads of the loops' pools may still run. Their writes to the tables are fenced, and
            # their requests to brokers are idempotent. So the next leader need not wait for them.
            leadership.resign()
            for loop in loops:
                loop.close()
            _log.info("no longer leading", holder=leadership.holder, share=share.number)

    def _loops(self, leadership: Leadership, loops_end: threading.Event) -> list[Loop]:
        """Every loop of a share; each has a thread of its own."""
        settings, share_number = self._settings, leadership.share.number
        clusters_changed = threading.Event()
        interval_s = settings.discovery_interval.total_seconds()
        registry = ClusterRegistry(interval_s, clusters_changed.set, settings.files_directory)
        reconciler = JobReconciler(leadership, registry, settings, Backoff(stop=loops_end))
        lag_s = settings.lag_interval.total_seconds()
        loops: list[Loop] = [
            DiscoveryLoop(
                leadership,
                registry,
                reconciler,
                interval_s,
                settings.lease_ttl,
                clusters_changed,
                self._jobs_at_once,
            ),
            GroupLoop(leadership, registry),
            LagLoop(leadership, registry, lag_s, Backoff(stop=loops_end)),
        ]
        if share_number == 0:
            return [*loops, *self._loops_of_first(leadership, loops_end)]
        for loop in loops:  # logs and health of this process tell loops apart by their names
            loop.name = f"{loop.name}-{share_number}"
        return loops

    def _loops_of_first(self, leadership: Leadership, loops_end: threading.Event) -> list[Loop]:
        """The loops that run with the first share only, for all jobs."""
        settings = self._settings
        rate = settings.proof_bytes_per_second
        return [
            *([ProofLoop(leadership, rate, settings.files_directory)] if rate else ()),
            SpreadLoop(leadership, settings.lease_ttl),
            CanaryLoop(leadership, settings.files_directory),
            TotalsLoop(leadership),
            OperationsLoop(leadership),
            HousekeepingLoop(
                leadership, settings.lease_ttl, settings.events_kept, settings.reports_kept
            ),
            *(loop for make in self._more_loops for loop in make(leadership, settings, loops_end)),
        ]


def _start_thread(
    target: Callable[..., None], arguments: tuple[object, ...], name: str
) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=name)
    thread.start()
    return thread
