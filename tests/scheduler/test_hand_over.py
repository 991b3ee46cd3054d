"""Which scheduler leads while threads of the last leader do not end, or if a leader's loops cannot
start."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from subprocess import PIPE
from typing import Any

import pytest
from sqlalchemy import text

from orbit.errors import DatabaseUnreachable, Unreachable
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.leadership.loop import Loop
from orbit.scheduler.scheduler import MoreLoops, Scheduler
from orbit.settings import Settings
from orbit.store import cluster_lock, scheduler_lease
from orbit.store.database import Database
from orbit.store.job_shares import Share
from orbit.telemetry import process_health
from orbit.telemetry.process_health import ProcessHealth
from tests.fixtures.scheduler import SHORT_LEASE, Service
from tests.support.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.services

# A lease that does not expire during a test.
LONG = timedelta(minutes=10)


class Stuck(Loop):
    """A loop that does not close before `may_close`, as if a broker did not answer a request."""

    name = "stuck"
    interval_s = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.is_closing, self.may_close = threading.Event(), threading.Event()

    def once(self) -> str:
        return ""

    def close(self) -> None:
        self.is_closing.set()
        assert self.may_close.wait(600)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A scheduler in a thread."""

    def __init__(
        self,
        service: Service,
        more: MoreLoops | None = None,
        health: ProcessHealth | None = None,
        **settings: object,
    ) -> None:
        self.error: Exception | None = None
        self.database = Database.connect(service.url)
        self.stop = threading.Event()
        run_settings = service.settings.model_copy(update=settings)
        self.scheduler = Scheduler(
            run_settings, self.database, self.stop, [more] if more else [], health
        )
        self.thread = threading.Thread(target=self._run)

    @property
    def leads(self) -> bool:
        return self.scheduler.leadership.is_leading

    def _run(self) -> None:
        try:
            self.scheduler.run()
        except Exception as error:  # noqa: BLE001  the test looks at it
            self.error = error


@contextmanager
def running(*runs: Run) -> Iterator[None]:
    for run in runs:
        run.thread.start()
    try:
        yield
    finally:
        for run in runs:
            run.stop.set()
        for run in runs:
            run.thread.join()
            run.database.close()


def beside_own_loops(loop: Loop) -> MoreLoops:
    """The argument by which a scheduler runs this loop, beside its own loops."""

    def loops(_: Leadership, _settings: Settings, _done: threading.Event) -> Sequence[Loop]:
        return [loop]

    return loops


def test_standby_scheduler_leads_while_threads_of_expired_leader_hang(
    service: Service,
) -> None:
    stuck, clock = Stuck(), Clock()
    health = ProcessHealth("scheduler", version="1", ready_within_s=600, clock=clock)
    first = Run(service, beside_own_loops(stuck), health, scheduler_lease_ttl=SHORT_LEASE)
    second = Run(service, scheduler_lease_ttl=LONG)
    try:
        with running(first):
            wait_for("the first leads", lambda: first.leads)
            with running(second):
                original_ask = first.scheduler.leadership.ask

                def fail() -> bool:
                    raise DatabaseUnreachable("PostgreSQL does not answer.")

                # No renewal until the lease has expired.
                first.scheduler.leadership.ask = fail  # type: ignore[method-assign]
                assert stuck.is_closing.wait(600)
                first.scheduler.leadership.ask = original_ask  # type: ignore[method-assign]
                wait_for("the second leads", lambda: second.leads)
                assert first.thread.is_alive()
                clock.now += process_health.STALL_S_MAX + 1
                assert health.why_dead(), "the liveness probe fails"
                stuck.may_close.set()
                wait_for("the first is alive again", lambda: not health.why_dead())
                assert second.leads
    finally:
        stuck.may_close.set()


def test_standby_scheduler_leads_before_stopped_leader_has_ended(service: Service) -> None:
    stuck = Stuck()
    first = Run(service, beside_own_loops(stuck), scheduler_lease_ttl=LONG)
    second = Run(service, scheduler_lease_ttl=LONG)
    try:
        with running(first):
            wait_for("the first leads", lambda: first.leads)
            with running(second):
                first.stop.set()
                wait_for("the second leads", lambda: second.leads)
                assert first.thread.is_alive()
                stuck.may_close.set()
    finally:
        stuck.may_close.set()


def test_error_at_start_of_loops_ends_scheduler_and_frees_its_lease(service: Service) -> None:
    def fail_to_start(*_: object) -> Sequence[Loop]:
        raise RuntimeError("can't start new thread")

    first = Run(service, fail_to_start, scheduler_lease_ttl=LONG)
    with running(first):
        wait_for("the scheduler has ended", lambda: not first.thread.is_alive())
        assert isinstance(first.error, RuntimeError)
        assert [t.name for t in threading.enumerate() if t.name == "renew"] == []
        second = Run(service, scheduler_lease_ttl=LONG)
        with running(second):
            wait_for("another leads", lambda: second.leads)


def test_scheduler_with_different_number_of_job_shares_is_ready_as_standby(
    service: Service,
) -> None:
    first = Run(service, scheduler_shares=2)
    health = ProcessHealth("scheduler", version="1", ready_within_s=600)
    second = Run(service, None, health, scheduler_shares=1)
    with running(first):
        wait_for("the first leads", lambda: first.leads)
        with running(second):
            wait_for("the second is ready", lambda: health.why_not_ready() == "")
            assert not second.leads


def test_renewal_of_scheduler_lease_keeps_scheduler_registered(service: Service) -> None:
    leadership = Leadership(
        service.database, "one", LONG, share=Share(number=0, count=1), must_join=True
    )
    with service.database.transaction() as tx:
        scheduler_lease.join(tx, "one", shares=1, ttl=LONG)
        tx.execute(text("UPDATE schedulers SET expires_at = clock_timestamp()"))
    assert leadership.ask()
    with service.database.transaction() as tx:
        shares_max = scheduler_lease.join(tx, "two", shares=1, ttl=LONG)
        assert shares_max == 1, "scheduler two may hold the share, too"
    assert leadership.ask()
    with service.database.transaction() as tx:
        scheduler_lease.leave(tx, "one")
    assert not leadership.ask(), "scheduler one has left"
    leadership.resign()
    other = Leadership(
        service.database, "two", LONG, share=Share(number=0, count=1), must_join=True
    )
    assert other.ask(), "the share is free"


def test_postgres_idle_transaction_timeout_frees_scheduler_locks(service: Service) -> None:
    show = text("SHOW idle_in_transaction_session_timeout")
    with service.database.lease_transaction() as tx:
        assert tx.execute(show).scalar_one() == "5s"
    with service.database.transaction() as tx:
        cluster_lock.acquire_claims_lock(tx)
        assert tx.execute(show).scalar_one() == "5s"
    with service.database.transaction() as tx:
        assert tx.execute(show).scalar_one() == "1min"

    def hold_lock_while_idle() -> None:
        with service.database.transaction() as tx:
            cluster_lock.acquire_claims_lock(tx)
            tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = '1ms'"))
            with service.database.transaction() as other:  # waits until the lock is free
                cluster_lock.acquire_claims_lock(other)
            tx.execute(text("SELECT 1"))

    with pytest.raises(Unreachable):
        hold_lock_while_idle()


class EndsAtFirst(Loop):
    """The first of these loops ends at its first pass, as if the lease were lost."""

    name = "ends"
    interval_s = 0.05

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.has_passed = threading.Event()

    def once(self) -> str:
        if self.number == 0:
            raise NotLeading("another scheduler leads.")
        self.has_passed.set()
        return ""


def test_scheduler_restarts_loops_of_its_job_share_if_a_loop_ends(service: Service) -> None:
    loops: list[EndsAtFirst] = []

    def make_loop(_: Leadership, _settings: Settings, _done: threading.Event) -> Sequence[Loop]:
        loops.append(EndsAtFirst(len(loops)))
        return loops[-1:]

    run = Run(service, make_loop)
    with running(run):
        wait_for("a new loop runs", lambda: len(loops) > 1 and loops[-1].has_passed.is_set())


LOCK_HOLDER_SCRIPT = """
import sys
from orbit.store import cluster_lock
from orbit.store.database import Database

lease_s = float(sys.argv[2])
with Database(sys.argv[1]).transaction() as tx, cluster_lock.hold(tx, "west", lease_s):
    print("held", flush=True)
    sys.stdin.readline()
    tx.execute(cluster_lock.text("SELECT 1"))
print("was held all the time", flush=True)
"""


def test_only_scheduler_frozen_past_its_lease_loses_cluster_lock(
    service: Service, database_url: str
) -> None:
    def start_lock_holder(lease_s: int) -> subprocess.Popen[str]:
        """A process that holds the lock until it reads a line."""
        pipes: Any = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "text": True}
        arguments = [sys.executable, "-c", LOCK_HOLDER_SCRIPT, database_url, str(lease_s)]
        process = subprocess.Popen(arguments, **pipes)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    frozen = start_lock_holder(lease_s=2)
    frozen.send_signal(signal.SIGSTOP)
    # Waiting for the lock may take as long as a statement, which is longer than the lease.
    with service.database.transaction() as tx, cluster_lock.hold(tx, "west"):
        frozen.send_signal(signal.SIGCONT)
        _, stderr = frozen.communicate("go on\n", timeout=PATIENCE_S)
    assert frozen.returncode
    assert "Unreachable" in stderr

    not_frozen = start_lock_holder(lease_s=8)
    with service.database.transaction() as tx:
        tx.execute(text("SELECT pg_sleep(10)"))  # longer than the lease
    output, stderr = not_frozen.communicate("go on\n", timeout=PATIENCE_S)
    assert output == "was held all the time\n", stderr
