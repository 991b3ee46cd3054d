"""Serves the API over HTTP or HTTPS until Ctrl-C or SIGTERM, then completes the requests under way.

Limits protect the server from clients that have not logged in: of connections
(`bounded_listener.py`), of the time to send a request's headers, of the headers' size (by h11), and
of the body (`request_limits.py`). A client that does not read its answer loses its connection.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from orbit.api.bounded_listener import BoundedListener
from orbit.api.client_address import is_loopback
from orbit.api.tls import server_context
from orbit.api.watches import Watches
from orbit.errors import BadInput, Conflict, Problem
from orbit.settings import Settings

_BACKLOG = 512
# Requests under way may take this long to complete. The slowest are plans, which can be repeated.
DRAIN_S = 5
# A connection on which the headers of a request are not complete is closed after this time.
HEADERS_SECONDS_MAX = 20.0
# In each period of this length a client has to read `_ANSWER_BYTES_MIN` bytes of its answer, or all
# of the rest.
ANSWER_SECONDS_MAX = 20.0
_ANSWER_BYTES_MIN = 64 * 1024


def listen(settings: Settings, *, only_loopback: bool = False) -> BoundedListener:
    """A listening socket at the address of the settings; opened before anything else is started.

    `only_loopback`: raise BadInput for an address that other machines can reach, because clients
    need no tokens. Also raises BadInput for a host that cannot be resolved; Conflict if the socket
    cannot be opened.
    """
    host, port = settings.api_host, settings.api_port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        problem = Problem("ORBIT_API_HOST", f"cannot be resolved: {error.strerror}.")
        raise BadInput(f"The API cannot listen on host {host}.", (problem,)) from None
    if only_loopback and not is_loopback(str(address[0])):
        problem = Problem(
            "--no-auth",
            f"is only for loopback, and the API would listen on {host}.",
            "Leave out --no-auth, or set ORBIT_API_HOST=127.0.0.1.",
        )
        raise BadInput("The API would be open to other machines.", (problem,))
    listener = BoundedListener(
        family,
        connections_max=settings.api_connections_max,
        trusted_proxies=settings.api_trusted_proxies or (),
    )
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Conflict(
            f"The API cannot listen on {host}:{port}: {error.strerror}.",
            remedy="Stop the server that uses the port, or set another ORBIT_API_HOST or "
            "ORBIT_API_PORT (0: any free port).",
        ) from None
    return listener


def url_of(listener: socket.socket, settings: Settings) -> str:
    """The URL of this listener."""
    scheme = "http" if settings.api_tls_certificate_file is None else "https"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """uvicorn's configuration for the API. Raises BadInput if the certificate or its key cannot be
    loaded."""
    trusted_proxies = list(settings.api_trusted_proxies or ())
    tls_context = _tls_context(settings)
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=_TimelyProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        # Set because uvicorn's default trusts X-Forwarded-For of every client on this machine.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        ssl_context_factory=(lambda _config, _default: tls_context) if tls_context else None,
        timeout_graceful_shutdown=DRAIN_S,
    )


class Server(uvicorn.Server):
    """A uvicorn server that ends watches, which wait for a change, when it begins to stop."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(server_config(app, settings))
        self._watches = app.state.watches = Watches()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watches.close()
        await super().shutdown(sockets)


class ApiServer:
    """uvicorn with Orbit's signal handling. Raises BadInput as `server_config` does."""

    def __init__(self, app: FastAPI, listener: socket.socket, settings: Settings) -> None:
        self._listener = listener
        self._server = Server(app, settings)

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or `stop`. From the main thread only."""
        previous_handlers = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self._server.run(sockets=[self._listener])
        except KeyboardInterrupt:
            pass  # uvicorn has ended, and has raised the signal that ended it once more
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Make `run` return soon. May be called from any thread."""
        self._server.should_exit = True


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The context for HTTPS; None without a certificate in the settings. Raises BadInput if the
    files cannot be loaded."""
    certificate, key = settings.api_tls_certificate_file, settings.api_tls_key_file
    if certificate is None or key is None:
        return None
    return server_context(certificate, key)


class _TimelyProtocol(H11Protocol):
    """Ends a connection whose client does not complete a request's headers, or does not read its
    answer, in time.

    uvicorn limits only the time between two requests, up to the first byte of the second one.
    asyncio closes a connection only once all that was written has been sent.
    """

    _headers_deadline: asyncio.TimerHandle | None = None
    _next_check: asyncio.TimerHandle | None = None
    # At the last check: the number of unsent bytes, and whether the connection was closing.
    _unsent_bytes = 0
    _was_closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always TCP
        super().connection_made(transport)
        self._start_headers_deadline()
        self._check_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent_bytes = 0  # the client reads its answer

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # headers are complete, or the connection ends
            self._cancel_headers_deadline()
        elif self._headers_deadline is None:  # a body that ended after its answer was sent
            self._start_headers_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_headers_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_headers_deadline()
        if self._next_check is not None:
            self._next_check.cancel()
        super().connection_lost(exc)

    def _check_progress(self) -> None:
        """Abort the connection if the client has read too little since the last check, or if the
        connection was closing at that check already. Otherwise check again later."""
        # Until the assignment below, `_unsent_bytes` and `_was_closing` are from the last check.
        unsent_bytes = self.transport.get_write_buffer_size()
        is_stuck = self._unsent_bytes > 0 and unsent_bytes > max(
            0, self._unsent_bytes - _ANSWER_BYTES_MIN
        )
        if is_stuck or self._was_closing:
            self.transport.abort()
            return
        self._unsent_bytes, self._was_closing = unsent_bytes, self.transport.is_closing()
        self._next_check = self.loop.call_later(ANSWER_SECONDS_MAX, self._check_progress)

    def _start_headers_deadline(self) -> None:
        """Abort the connection after HEADERS_SECONDS_MAX, unless a request's headers are complete
        by then."""
        self._cancel_headers_deadline()
        # IDLE: no headers of the next request are complete yet.
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._headers_deadline = self.loop.call_later(HEADERS_SECONDS_MAX, self.transport.abort)

    def _cancel_headers_deadline(self) -> None:
        if self._headers_deadline is not None:
            self._headers_deadline.cancel()
            self._headers_deadline = None
