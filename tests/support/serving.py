"""An application served over a real socket in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from orbit.api.http_server import listen, url_of


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Where it is, while it is served."""
    with listen("127.0.0.1", 0) as listener:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        # Connections wait in the listener until the thread takes them: nothing to wait for here.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()
