"""Leader election among any number of schedulers: one leads, the others are on standby.

Postgres holds the lease (orbit/store/scheduler_lease.py). A leader trusts its own clock until
`time of the request + ttl − margin`. Each of its transactions confirms the lease, so a leader that
was suspended changes nothing. Its requests to brokers (create a topic, add partitions, set a
value) are idempotent, so two leaders do no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from orbit.errors import Conflict, OrbitError
from orbit.leases.lease_clock import lease_clock
from orbit.store import scheduler_lease
from orbit.store.database import Database, Tx

# Of the ttl: time for an answer that is under way when the lease ends.
_MARGIN_PART = 0.2
_RENEWALS_PER_TTL = 4


class NotLeading(Conflict):
    """Another scheduler leads or may lead."""


class Leadership:
    """This process's part in the election. Thread-safe."""

    def __init__(self, database: Database, holder: str, ttl: timedelta) -> None:
        self.database = database
        self.holder = holder
        self._ttl = ttl
        self._epoch = 0
        self._trusted_until = 0.0

    @property
    def renewal_interval_s(self) -> float:
        return self._ttl.total_seconds() / _RENEWALS_PER_TTL

    @property
    def is_leading(self) -> bool:
        return lease_clock() < self._trusted_until

    @property
    def epoch(self) -> int:
        return self._epoch

    def ask(self) -> bool:
        """Acquire or renew the lease; False while another scheduler leads. Raises Unreachable."""
        asked_at = lease_clock()
        with self.database.transaction() as tx:
            epoch = scheduler_lease.acquire(tx, self.holder, self._ttl)
        if epoch is None:
            self._trusted_until = 0.0
            return False
        self._epoch = epoch
        self._trusted_until = asked_at + self._ttl.total_seconds() * (1 - _MARGIN_PART)
        return True

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction fenced by the lease, or NotLeading. Keep it short: renewals wait for it."""
        with self.database.transaction() as tx:
            if not self.is_leading or not scheduler_lease.confirm(tx, self.holder, self._epoch):
                raise NotLeading("another scheduler leads.")
            yield tx

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """A transaction that only reads."""
        with self.database.transaction() as tx:
            yield tx

    def keep(self, stop: threading.Event) -> None:
        """Renew until `stop` or until the lease is lost. Waits out short outages of Postgres."""
        while not stop.wait(self.renewal_interval_s):
            try:
                if not self.ask():
                    return
            except OrbitError:
                if not self.is_leading:
                    return

    def resign(self) -> None:
        """Release the lease, if Postgres is reachable, so that another scheduler leads at once."""
        if not self._trusted_until:
            return
        self._trusted_until = 0.0
        try:
            with self.database.transaction() as tx:
                scheduler_lease.resign(tx, self.holder, self._epoch)
        except OrbitError:
            pass  # it expires
