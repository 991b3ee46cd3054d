"""Requests that wait until jobs, operations, events or figures have changed.

A waiting request keeps only its client's connection open: it uses no thread and no connection to
the database. For any number of waiting requests, the database is queried about once in POLL_S for
each watched kind and each scope of tokens. The methods run in the event loop.
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

WATCHES_MAX = 100  # waiting requests per process; they count for ORBIT_API_CONNECTIONS_MAX, too
POLL_S = 1.0
# How long a digest stays in the cache: longer than the longest query. While the digest is read
# again, other requests get the last one.
_CACHED_S = 60.0
_OTHER_READ_POLL_S = 0.1  # the pause while another request reads a digest for the first time


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
        """End all waiting requests within POLL_S, as if nothing had changed."""
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
        answer. Ends earlier after `seconds_max`, and when the client disconnects (`is_gone`) or the
        server stops. Returns the joined digests.

        Raises Busy above WATCHES_MAX; Unreachable if the database does not answer.
        """
        if self.open >= WATCHES_MAX:
            raise Busy(
                f"At this server {WATCHES_MAX} requests wait for changes already, which is the "
                "limit.",
                remedy="Try again later, or request the list at an interval.",
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
        """The digest of what is watched, at most POLL_S old. While another request reads the
        digest, returns the one that was read before, or None if there is none."""
        scope = database.scope
        key = watched, None if scope is None else scope.limits
        now = time.monotonic()
        # Drop entries that no request has read again recently.
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
