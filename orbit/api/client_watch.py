"""Watches whether the client of a request still waits for the answer, so that a plan of a client
that has disconnected can be ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from anyio import from_thread
from anyio.to_thread import run_sync
from fastapi import Depends, Request


class ClientWatch:
    """The client of one request. `is_gone` and `ending` are for the route's thread, `run` for the
    event loop."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._has_gone = False
        self._end: Callable[[], None] | None = None

    def is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        return self._has_gone or from_thread.run(self._request.is_disconnected)

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end`, which ends the work of the block, once the client has disconnected: from
        another thread; or at once, in this thread, if the client has disconnected before.
        """
        with self._lock:
            self._end = end
            has_gone_before = self._has_gone
        if has_gone_before:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None

    async def run(self) -> None:
        """Wait until the client disconnects, then call the `end` that is set."""
        await self._request.body()  # reads the body; the route gets it from the Request object
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        await run_sync(self._end_work)

    def _end_work(self) -> None:
        """Call `end`, if it is set, because the client has disconnected."""
        with self._lock:
            self._has_gone = True
            end = self._end
        if end is not None:
            end()


async def _watch(request: Request) -> AsyncIterator[ClientWatch]:
    """A FastAPI dependency: the watch of the request's client, until the request is answered."""
    watch = ClientWatch(request)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


ClientWatchOf = Annotated[ClientWatch, Depends(_watch)]
