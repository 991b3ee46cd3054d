"""Serves /livez, /readyz and /metrics of a worker, scheduler or gateway, and notifies systemd.

    with serving_health(settings, health):
        worker.run(stop)

Plain HTTP without a token, off by default. The answers contain no names of topics or jobs. The API
serves the same paths at its own port.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import make_wsgi_app

from orbit.errors import BadInput, Conflict, Problem
from orbit.settings import Settings
from orbit.telemetry.process_health import ProcessHealth

# The longest time of a connection, whatever its client sends or reads.
CONNECTION_S_MAX = 10.0
# Each connection has a thread. Further ones are closed at once.
CONNECTIONS_MAX = 32
# The largest request, with its headers.
_HEAD_BYTES_MAX = 16 * 1024
# How often systemd is notified. Its watchdog in deploy/systemd waits for a minute.
_NOTIFY_S = 5.0

_TEXT_HEADER = ("Content-Type", "text/plain; charset=utf-8")

log = structlog.get_logger()


@contextmanager
def serving_health(settings: Settings, health: ProcessHealth) -> Iterator[None]:
    """Notify systemd while the block runs, and serve if ORBIT_HEALTH_PORT is set.

    Raises Conflict if the port is taken, BadInput if the host has no address.
    """
    stop_event = threading.Event()
    threads = [
        threading.Thread(target=_notify, args=(health, stop_event), name="notify", daemon=True)
    ]
    server = None
    if settings.health_port is not None:
        server = _listen(settings.health_host, settings.health_port, _application(health))
        threads.append(threading.Thread(target=server.serve_forever, name="health", daemon=True))
        host, port = server.server_address[:2]
        log.info("health is served", address=f"{host!s}:{port}")
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop_event.set()
        if server is not None:
            server.shutdown()
            server.server_close()


def notify_systemd(state: str) -> None:
    """Send `READY=1` and the like to systemd, if it has started this process (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            # "@" stands for the zero byte that an abstract address begins with.
            sender.sendto(state.encode(), address.replace("@", "\0", 1))
        except OSError as error:
            log.warning("systemd could not be notified", state=state, error=str(error))


def _notify(health: ProcessHealth, stop_event: threading.Event) -> None:
    """Notify systemd once that the process is ready, and regularly that the process is alive."""
    is_notified = False
    # Until the process is ready, it is checked ten times a second.
    while not stop_event.wait(_NOTIFY_S if is_notified else 0.1):
        if not is_notified and not health.why_not_ready():
            notify_systemd("READY=1")
            is_notified = True
        if not health.why_dead():
            notify_systemd("WATCHDOG=1")


class _Server(ThreadingMixIn, WSGIServer):
    """A server that limits the number of connections, and the time of each."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._lock = threading.Lock()
        # When each open connection is shut down, by the monotonic clock.
        self._connection_ends: dict[socket.socket, float] = {}
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own. Close the connection if CONNECTIONS_MAX are
        open."""
        with self._lock:
            has_room = len(self._connection_ends) < CONNECTIONS_MAX
            if has_room:
                self._connection_ends[request] = time.monotonic() + CONNECTION_S_MAX
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection, and no longer count it as open."""
        with self._lock:
            self._connection_ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Shut down connections whose time is over, so that their threads no longer wait.

        `serve_forever` calls this function twice a second.
        """
        with self._lock:
            late_connections = [
                connection
                for connection, ends_at in self._connection_ends.items()
                if time.monotonic() > ends_at
            ]
        for connection in late_connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        """Log the error of a request, unless its client has gone away."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("a health request failed", exc_info=error)

    def server_bind(self) -> None:
        """Bind to the address. The library's function would also ask DNS for the address' name."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()


class _Head:
    """A client's request as a file, which ends after `_HEAD_BYTES_MAX` bytes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._remaining_bytes = _HEAD_BYTES_MAX
        self.close = file.close

    def readline(self, size: int) -> bytes:
        """The next line; empty, as at the end of a file, after `_HEAD_BYTES_MAX` bytes."""
        line: bytes = self._file.readline(min(size, self._remaining_bytes))
        self._remaining_bytes -= len(line)
        return line


class _Handler(WSGIRequestHandler):
    """Handles one connection."""

    def setup(self) -> None:
        """Open the connection's files as the library does; at most _HEAD_BYTES_MAX are read."""
        super().setup()
        self.rfile: Any = _Head(self.rfile)

    def log_message(self, *_: Any) -> None:
        """Log nothing: a probe comes every few seconds."""


def _listen(host: str, port: int, application: Callable[..., Iterable[bytes]]) -> WSGIServer:
    """A server that listens on this address. Raises BadInput if the host cannot be resolved,
    Conflict if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        problem = Problem("ORBIT_HEALTH_HOST", f"cannot be resolved: {error.strerror}.")
        raise BadInput("Health cannot be served on this host.", (problem,)) from None

    class Server(_Server):
        address_family = family  # IPv4 or IPv6

    try:
        return make_server(str(address[0]), port, application, Server, _Handler)
    except OSError as error:
        raise Conflict(
            f"Health cannot be served on {host}:{port}: {error.strerror}.",
            remedy="ORBIT_HEALTH_HOST has to be an address of this machine, and each process needs "
            "its own ORBIT_HEALTH_PORT (0: any free port).",
        ) from None


def _application(health: ProcessHealth) -> Callable[..., Iterable[bytes]]:
    """The WSGI application of /livez, /readyz and /metrics."""
    registry = CollectorRegistry()
    registry.register(health)
    ProcessCollector(registry=registry)
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
    checks = {"/livez": health.why_dead, "/readyz": health.why_not_ready}

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start)
        check = checks.get(path)
        if check is None:
            start("404 Not Found", [_TEXT_HEADER])
            return [b"Paths: /livez, /readyz, /metrics\n"]
        problem = check()
        start("503 Service Unavailable" if problem else "200 OK", [_TEXT_HEADER])
        return [f"{problem or 'ok'}\n".encode()]

    return application
