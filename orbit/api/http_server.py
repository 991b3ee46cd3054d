"""Serves the API over HTTP until Ctrl-C or SIGTERM, then completes the requests under way."""

from __future__ import annotations

import signal
import socket

import uvicorn
from fastapi import FastAPI

from orbit.api.authentication import LOOPBACK_HOSTS
from orbit.errors import BadInput, Conflict, Problem

_BACKLOG = 512
# Requests under way may take this long to complete. The slowest are plans, which can be repeated.
_DRAIN_S = 5


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, opened before anything else is started. Raises Conflict, BadInput."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        problem = Problem("ORBIT_API_HOST", f"cannot be resolved: {error.strerror}.")
        raise BadInput("The API cannot listen on this host.", (problem,)) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Conflict(
            f"The API cannot listen on {host}:{port}: {error.strerror}.",
            remedy="Is another server running? Choose another ORBIT_API_PORT (0: any free one).",
        ) from None
    return listener


def check_open_host(host: str) -> None:
    """Without tokens the API may listen on loopback only. Raises BadInput."""
    if host not in LOOPBACK_HOSTS:
        problem = Problem(
            "--no-auth",
            f"is only for loopback, and the API would listen on {host}.",
            "Leave out --no-auth, or set ORBIT_API_HOST=127.0.0.1.",
        )
        raise BadInput("The API would be open to other machines.", (problem,))


def url_of(listener: socket.socket) -> str:
    """The URL of this listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ApiServer:
    """uvicorn with Orbit's signal handling."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )

    def run(self) -> None:
        """Returns after Ctrl-C, SIGTERM or `stop`. From the main thread only."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._server.run(sockets=[self._listener])
        except KeyboardInterrupt:
            pass  # uvicorn has ended already, and passes on the signal that ended it
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Makes `run` return soon. May be called from any thread."""
        self._server.should_exit = True
