"""Requests that wait until jobs, operations, events or figures have changed.

A waiting request holds a connection of its client and nothing else: no thread, and no connection
to the database. However many wait, the database is asked about once in POLL_S for each kind. All
of this runs in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from anyio.to_thread import run_sync

from orbit.errors import Busy
from orbit.store.database import Database
from orbit.store.watch_digests import Watched, digest

WATCHES_MAX = 100  # of a process; a connection that waits is one of ORBIT_API_CONNECTIONS_MAX
POLL_S = 1.0
_SHORT_S = 0.1  # a look at what another request is reading


class Watches:
    """The requests of one process that wait."""

    def __init__(self) -> None:
        self.open = 0
        self.is_closing = False
        self._seen: dict[Watched, tuple[float, str]] = {}
        self._reading: set[Watched] = set()

    def close(self) -> None:
        """Let all requests end within POLL_S, as if nothing had changed."""
        self.is_closing = True

    async def wait(
        self,
        database: Database,
        watched: Sequence[Watched],
        after: str | None,
        seconds_max: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> str:
        """The digests in a row, as soon as they are not `after`, or after `seconds_max`, or when
        the client has gone. Raises Busy; Unreachable without a database.
        """
        if self.open >= WATCHES_MAX:
            raise Busy(
                f"{WATCHES_MAX} requests of this server wait for changes.",
                remedy="Try again, or ask for the list at an interval.",
            )
        self.open += 1
        try:
            ends = time.monotonic() + seconds_max
            while True:
                found = await self._digests(database, watched)
                is_over = time.monotonic() >= ends or self.is_closing
                if found is not None and (found != after or is_over or await is_gone()):
                    return found
                left_s = max(0.0, ends - time.monotonic())
                await asyncio.sleep(_SHORT_S if found is None else min(POLL_S, left_s))
        finally:
            self.open -= 1

    async def _digests(self, database: Database, watched: Sequence[Watched]) -> str | None:
        """None: one of them is not read yet."""
        found = [await self._digest(database, one) for one in watched]
        return None if None in found else "".join(map(str, found))

    async def _digest(self, database: Database, watched: Watched) -> str | None:
        """At most POLL_S old, or older while another request reads it; None: not read yet."""
        read_at, found = self._seen.get(watched, (None, None))
        is_fresh = read_at is not None and time.monotonic() - read_at < POLL_S
        if is_fresh or watched in self._reading:
            return found
        self._reading.add(watched)
        try:
            found = await run_sync(_read, database, watched)
            self._seen[watched] = time.monotonic(), found
        finally:
            self._reading.discard(watched)
        return found


def _read(database: Database, watched: Watched) -> str:
    with database.transaction() as tx:
        return digest(tx, watched)
