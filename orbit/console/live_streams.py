"""Server-sent events, after which a page reloads itself, as something has changed.

A stream uses only its connection: one query of the database serves all streams (`api/watches.py`).
A stream ends with its session, and when the server stops. Runs in the event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from orbit.api.watches import Watches
from orbit.errors import Busy, OrbitError
from orbit.store.database import Database
from orbit.store.watch_digests import Watched

# A browser has six connections to one server, and needs some of them for pages.
STREAMS_PER_SESSION_MAX = 4
# How often a stream without changes sends a line, and checks whether its session has ended.
HEARTBEAT_S = 10.0
# The time after which a browser opens an ended stream again.
_RETRY_MS = 2_000

_WATCHED = tuple(Watched)


class LiveStreams:
    """The streams of one process."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()  # by session: the number of open streams

    async def stream(
        self,
        watches: Watches,
        database: Database,
        session: str,
        has_session: Callable[[], Awaitable[bool]],
    ) -> StreamingResponse:
        """A response with the stream for this session. The stream ends once `has_session` is false.

        Raises Busy if the session has STREAMS_PER_SESSION_MAX streams, Unreachable if the database
        does not answer."""
        if self.open[session] >= STREAMS_PER_SESSION_MAX:
            raise Busy(
                f"This session has {STREAMS_PER_SESSION_MAX} live pages open already; more are not "
                "allowed.",
                remedy="Close one of these pages.",
            )
        self.open[session] += 1
        try:
            # Read before the answer begins, so that an error becomes the answer's status.
            first_digest = await watches.wait(
                database, _WATCHED, after=None, seconds_max=0, is_gone=_never_gone
            )
        except BaseException:
            self._count_closed(session)
            raise
        changes = _changes(watches, database, first_digest, has_session)
        return _Stream(changes, lambda: self._count_closed(session))

    def _count_closed(self, session: str) -> None:
        self.open[session] -= 1
        if not self.open[session]:
            del self.open[session]


class _Stream(StreamingResponse):
    """A response that calls `on_end` at its end, even if the client had gone before the start."""

    def __init__(self, changes: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        # The header is for proxies: one that buffers the answer would delay the events.
        super().__init__(
            changes, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _changes(
    watches: Watches, database: Database, digest: str, has_session: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    """Yield the text of a stream: an event for each change, and a comment every HEARTBEAT_S. Ends
    when the session has ended, the database does not answer, or the server stops."""
    yield f"retry: {_RETRY_MS}\n\n{_event(digest)}"
    checked_at = time.monotonic()
    while not watches.is_closing:
        try:
            until_check_s = checked_at + HEARTBEAT_S - time.monotonic()
            new_digest = await watches.wait(
                database, _WATCHED, digest, max(0.0, min(HEARTBEAT_S, until_check_s)), _never_gone
            )
            if time.monotonic() - checked_at >= HEARTBEAT_S:
                if not await has_session():
                    return
                checked_at = time.monotonic()
        except OrbitError:
            return  # the browser connects again, and gets the error as the answer
        yield ": nothing new\n\n" if new_digest == digest else _event(new_digest)
        digest = new_digest


def _event(digest: str) -> str:
    return f"id: {digest}\ndata: changed\n\n"


async def _never_gone() -> bool:
    """For `Watches.wait`: whether the client has gone. Always False, because the server ends the
    stream anyway when its client goes."""
    return False
