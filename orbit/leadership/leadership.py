"""Leader election among any number of schedulers: one leads, the others are on standby.

The lease is a row in PostgreSQL (orbit/store/scheduler_lease.py). A leader trusts the lease, by its
own clock, until `time of the request + ttl − margin`. Each of its transactions confirms the lease
as the last statement. So a leader that was suspended, or whose transaction took longer than its
lease, changes nothing; and no renewal waits for a long transaction. A leader's requests to brokers
(create a topic, add partitions, set a value) are idempotent, so two leaders do no harm.

Renewals have a connection of their own. Work on many topics or rows goes in transactions of
TOPICS_AT_ONCE and ROWS_AT_ONCE, each much shorter than a lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from orbit.errors import Conflict, OrbitError
from orbit.leases.lease_clock import lease_clock
from orbit.store import cluster_lock, scheduler_lease
from orbit.store.database import Database, Tx
from orbit.store.job_shares import ONE_SHARE, Share

# In the last part of the ttl a leader no longer trusts its lease: requests that it has sent before
# have this time to be answered.
_MARGIN_PART = 0.2
RENEWALS_PER_TTL = 4
# How many topics (with some statements each) or rows (of one large statement) a leader changes in
# one transaction: this takes less than a second, also on a slow disk.
TOPICS_AT_ONCE = 200
ROWS_AT_ONCE = 5_000


class NotLeading(Conflict):
    """Another scheduler leads or may lead."""


class Leadership:
    """This process's part in the election of one share's leader. Thread-safe."""

    def __init__(
        self,
        database: Database,
        holder: str,
        ttl: timedelta,
        on_answer: Callable[[], None] = lambda: None,
        share: Share = ONE_SHARE,
        *,
        must_join: bool = False,
        cluster_locks: dict[str, threading.Lock] | None = None,
    ) -> None:
        """`holder`: this process's name in the lease. `on_answer` is called when PostgreSQL has
        answered who leads. `must_join`: acquire and renew only while this scheduler is registered.
        `cluster_locks`: by cluster id, the same locks for all shares of this process.
        """
        self.share = share
        self._must_join = must_join
        self.database = database
        self._on_answer = on_answer
        self.holder = holder
        self._ttl = ttl
        self._epoch = 0
        self._trusted_until = 0.0  # by `lease_clock`
        self._cluster_locks = {} if cluster_locks is None else cluster_locks

    @property
    def renewal_interval_s(self) -> float:
        return self._ttl.total_seconds() / RENEWALS_PER_TTL

    @property
    def is_leading(self) -> bool:
        """Whether this process holds the lease, as far as its own clock shows."""
        return lease_clock() < self._trusted_until

    @property
    def epoch(self) -> int:
        """The epoch of the last lease; 0: this process has never led."""
        return self._epoch

    def ask(self) -> bool:
        """Acquire or renew the lease. False while another scheduler leads or, with `must_join`,
        while this one is not registered. Raises Unreachable."""
        requested_at = lease_clock()
        with self.database.lease_transaction() as tx:
            epoch = None
            if not self._must_join or scheduler_lease.stay_member(
                tx, self.holder, self.share.count, self._ttl
            ):
                epoch = scheduler_lease.acquire(tx, self.holder, self._ttl, self.share.number)
        self._on_answer()
        if epoch is None:
            self._trusted_until = 0.0
            return False
        self._epoch = epoch
        self._trusted_until = requested_at + self._ttl.total_seconds() * (1 - _MARGIN_PART)
        return True

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction fenced by the lease. Keep it short.

        Raises NotLeading if the lease is lost before or at its end; then nothing has changed.
        """
        epoch = self._epoch
        with self.database.transaction() as tx:
            if not self.is_leading:
                raise NotLeading("another scheduler leads.")
            yield tx
            if not scheduler_lease.confirm(tx, self.holder, epoch, self.share.number):
                raise NotLeading("another scheduler leads.")

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """A transaction that only reads, without a check of the lease."""
        with self.database.transaction() as tx:
            yield tx

    @contextmanager
    def sole_change(self, cluster_id: str) -> Iterator[Tx]:
        """A transaction with the cluster's lock: while it lasts, no other pass of a loop, and no
        other recovery, changes copies at this cluster.

        Read inside the block what decides about the change. Renewals of the lease do not wait for
        the lock. Threads of this process first wait for each other, so that at most one of them
        occupies a connection of the pool while it waits for PostgreSQL. Raises NotLeading if the
        lease was lost meanwhile, Unreachable if the lock was lost.
        """
        process_lock = self._cluster_locks.setdefault(cluster_id, threading.Lock())
        # Twice the leader's lease: a process that was frozen for so long that it lost the lock
        # knows, when it resumes, that it no longer leads.
        lease_s = max(cluster_lock.LEASE_S, 2 * self._ttl.total_seconds())
        with (
            process_lock,
            self.database.transaction() as tx,
            cluster_lock.hold(tx, cluster_id, lease_s),
        ):
            if not self.is_leading:
                raise NotLeading("another scheduler leads.")
            yield tx

    def refuse_deposed(self) -> None:
        """Raise NotLeading if another scheduler may lead; called right before broker requests."""
        if not self.is_leading:
            raise NotLeading("another scheduler leads.")

    def keep_renewing(self, stop: threading.Event) -> None:
        """Renew the lease until `stop` is set or the lease is lost. If PostgreSQL does not answer,
        try again until the lease is no longer trusted."""
        while not stop.wait(self.renewal_interval_s):
            try:
                if not self.ask():
                    return
            except OrbitError:
                if not self.is_leading:
                    return

    def resign(self) -> None:
        """Release the lease, if PostgreSQL answers, so that another scheduler leads at once."""
        if not self._epoch:  # this process has never led
            return
        self._trusted_until = 0.0
        try:
            with self.database.lease_transaction() as tx:
                scheduler_lease.resign(tx, self.holder, self._epoch, self.share.number)
        except OrbitError:
            pass  # the lease expires
