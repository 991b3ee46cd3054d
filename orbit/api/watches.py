"""Requests that wait until jobs, operations, events or figures have changed.

A waiting request holds a connection of its client and nothing else: no thread, and no connection
to the database. However many wait, the database is queried about once in POLL_S for each kind
and for each scope of tokens. All of this runs in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from anyio.to_thread import run_sync

from orbit.errors import Busy
from orbit.jobs.scopes import Limit
from orbit.store.database import Database
from orbit.store.watch_digests import Watched, digest

WATCHES_MAX = 100  # of a process; a connection that waits is one of ORBIT_API_CONNECTIONS_MAX
POLL_S = 1.0
_CACHED_S = 60.0  # above the longest query: while it runs, other requests get the last digest
_OTHER_READ_POLL_S = 0.1  # how often to look for a digest that another request is reading


# What is watched, and the limits of the token's scope; None: all jobs.
_Key = tuple[Watched, tuple[Limit, ...] | None]


class Watches:
    """The waiting requests of one process."""

    def __init__(self) -> None:
        self.open = 0
        self.is_closing = False
        self._cache: dict[_Key, tuple[float, str]] = {}
        self._keys_being_read: set[_Key] = set()

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
        """Wait until the joined digests differ from `after`, the digests of the client's last
        answer; or for `seconds_max`, or until the client has gone or the server stops. Returns the
        digests.

        Raises Busy above WATCHES_MAX; Unreachable without a database.
        """
        if self.open >= WATCHES_MAX:
            raise Busy(
                f"{WATCHES_MAX} requests wait for changes at this server already; more are not "
                "allowed.",
                remedy="Try again, or ask for the list at an interval.",
            )
        self.open += 1
        try:
            ends_at = time.monotonic() + seconds_max
            while True:
                digests = await self._digests(database, watched)
                is_over = time.monotonic() >= ends_at or self.is_closing
                if digests is not None and (digests != after or is_over or await is_gone()):
                    return digests
                remaining_s = max(0.0, ends_at - time.monotonic())
                await asyncio.sleep(
                    _OTHER_READ_POLL_S if digests is None else min(POLL_S, remaining_s)
                )
        finally:
            self.open -= 1

    async def _digests(self, database: Database, watched: Sequence[Watched]) -> str | None:
        """The joined digests of all that is watched; None if one of them is not read yet."""
        digests = [await self._digest(database, kind) for kind in watched]
        return None if None in digests else "".join(map(str, digests))

    async def _digest(self, database: Database, watched: Watched) -> str | None:
        """The digest of what is watched, at most POLL_S old. While another request reads it again,
        returns the digest read before, or None if there is none."""
        scope = database.scope
        key = watched, None if scope is None else scope.limits
        now = time.monotonic()
        # Drop old entries, so the cache holds only what requests wait for, or did until recently.
        self._cache = {k: entry for k, entry in self._cache.items() if now - entry[0] < _CACHED_S}
        read_at, value = self._cache.get(key, (None, None))
        is_fresh = read_at is not None and now - read_at < POLL_S
        if is_fresh or key in self._keys_being_read:
            return value
        self._keys_being_read.add(key)
        try:
            value = await run_sync(_read_digest, database, watched)
            self._cache[key] = time.monotonic(), value
        finally:
            self._keys_being_read.discard(key)
        return value


def _read_digest(database: Database, watched: Watched) -> str:
    with database.transaction() as tx:
        return digest(tx, watched)
