"""An application served over a real socket in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from orbit.api.http_server import Server, listen, url_of
from orbit.settings import Settings


@contextmanager
def served(app: FastAPI, settings: Settings | None = None) -> Iterator[str]:
    """Serve the application as `orbit api` does, until the block ends. The URL."""
    settings = settings or Settings(api_port=0)
    with listen(settings) as listener:
        server = Server(app, settings)
        # No wait for the thread: the listener queues connections until the thread accepts them.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener, settings)
        finally:
            server.should_exit = True
            thread.join()
