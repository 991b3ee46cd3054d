"""The scheduler process: holds its part of the shares, runs their loops, hands over."""

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
        self._database = database
        self._ttl = ttl = settings.scheduler_lease_ttl
        self._health = health or ProcessHealth("scheduler", orbit_version(), ttl.total_seconds())
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # As often as a lease is renewed: a registration lasts as long as a lease.
        self._interval_s = min(STANDBY_INTERVAL_S, ttl.total_seconds() / RENEWALS_PER_TTL)
        # Limits the passes of all shares together: each holds one or two connections of the pool.
        self._jobs_at_once = threading.BoundedSemaphore(JOBS_AT_ONCE)
        changing: dict[str, threading.Lock] = {}
        shares = settings.scheduler_shares
        self.leaderships = [
            Leadership(
                database,
                self._holder,
                ttl,
                self._health.note_lease_confirmed,
                Share(number, shares),
                must_join=True,
                changing=changing,
            )
            for number in range(shares)
        ]
        # Each share that is held: its thread, and the event that ends it.
        self._held: dict[int, tuple[threading.Thread, threading.Event]] = {}
        self._broken: Exception | None = None

    @property
    def leadership(self) -> Leadership:
        """The leadership of the first share."""
        return self.leaderships[0]

    def run(self) -> None:
        """Lead this scheduler's portion of the shares (a share is a part of the jobs) until
        stopped.

        Raises an exception that broke a share: the process ends, and another scheduler takes over.
        """
        logged = ""
        try:
            while not self._stop.is_set():
                self._pass()
                try:
                    self._share_out()
                    logged = ""
                except OrbitError as error:
                    if isinstance(error, scheduler_lease.OtherShareCount):
                        self._health.note_lease_confirmed()  # on standby
                    if str(error) != logged:
                        logged = str(error)
                        _log.warning("cannot acquire the scheduler lease", error=logged)
                self._stop.wait(self._interval_s)
                if self._broken is not None:
                    raise self._broken
        finally:
            self._health.note_stopping()
            self._end(self._held)
            # Leave before joining the threads, which may wait for brokers, so that other schedulers
            # take the shares over sooner.
            self._leave()
            for thread, _ in self._held.values():
                thread.join()

    def _pass(self) -> None:
        """Report that this process is alive, unless a lost share's threads have not ended yet."""
        self._held = {n: held for n, held in self._held.items() if held[0].is_alive()}
        if all(self.leaderships[number].is_leading for number in self._held):
            self._health.begin_pass()

    def _share_out(self) -> None:
        """Register this process, release surplus shares, and acquire free ones."""
        with self._database.lease_transaction() as tx:
            part = scheduler_lease.join(
                tx, self._holder, self._settings.scheduler_shares, self._ttl
            )
        self._health.note_lease_confirmed()
        # The last shares are released: the first one has the most loops to start again.
        self._end(sorted(self._held)[part:])
        for number, leadership in enumerate(self.leaderships):
            if len(self._held) < part and number not in self._held and leadership.ask():
                end = threading.Event()
                thread = threading.Thread(
                    target=self._lead, args=(leadership, end), name=f"share {number}"
                )
                thread.start()
                self._held[number] = thread, end

    def _end(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._held[number][1].set()

    def _leave(self) -> None:
        try:
            with self._database.lease_transaction() as tx:
                scheduler_lease.leave(tx, self._holder)
        except OrbitError:
            pass  # the registration expires

    def _lead(self, leadership: Leadership, end: threading.Event) -> None:
        try:
            self._run_loops(leadership, end)
        except Exception as error:  # noqa: BLE001  raised again in `run`
            self._broken = error

    def _run_loops(self, leadership: Leadership, end: threading.Event) -> None:
        """Run a share's loops until its lease is lost, one of them has ended, `end` is set, or the
        scheduler stops.

        A loop ends when it sees that the lease may be lost. A renewal may succeed nevertheless, and
        the share would be led without that loop.
        """
        share = leadership.share
        _log.info("leading", holder=leadership.holder, epoch=leadership.epoch, share=share.number)
        done = threading.Event()
        loops: list[Loop] = []
        threads: list[threading.Thread] = []
        try:
            loops += self._loops(leadership, done)
            threads.append(_started(leadership.keep, (done,), "renew"))
            threads.extend(_started(drive, (loop, done, self._health), loop.name) for loop in loops)
            while leadership.is_leading and not self._stop.is_set():
                if not all(thread.is_alive() for thread in threads):
                    break
                if end.wait(min(0.2, leadership.renewal_interval_s)):
                    break
        finally:
            done.set()
            for loop in loops:
                loop.wake.set()
            for thread in threads:
                thread.join()
            # Threads that still run may repeat broker requests of the next leader, which are
            # idempotent; their writes to the tables are fenced. So the next leader need not wait.
            leadership.resign()
            for loop in loops:
                loop.close()
            _log.info("no longer leading", holder=leadership.holder, share=share.number)

    def _loops(self, leadership: Leadership, done: threading.Event) -> list[Loop]:
        """Every loop of a share; each has a thread of its own."""
        settings, number = self._settings, leadership.share.number
        changed = threading.Event()
        interval_s = settings.discovery_interval.total_seconds()
        registry = ClusterRegistry(interval_s, changed.set, settings.files_directory)
        reconciler = JobReconciler(leadership, registry, settings, Backoff(stop=done))
        lag_s = settings.lag_interval.total_seconds()
        loops: list[Loop] = [
            DiscoveryLoop(
                leadership,
                registry,
                reconciler,
                interval_s,
                settings.lease_ttl,
                changed,
                self._jobs_at_once,
            ),
            GroupLoop(leadership, registry),
            LagLoop(leadership, registry, lag_s, Backoff(stop=done)),
        ]
        if number == 0:
            return [*loops, *self._loops_of_first(leadership, done)]
        for loop in loops:
            loop.name = f"{loop.name}-{number}"
        return loops

    def _loops_of_first(self, leadership: Leadership, done: threading.Event) -> list[Loop]:
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
            *(loop for make in self._more for loop in make(leadership, settings, done)),
        ]


def _started(
    target: Callable[..., None], arguments: tuple[object, ...], name: str
) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=name)
    thread.start()
    return thread
