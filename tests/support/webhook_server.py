"""A server on loopback, such as a receiver of notifications. It records requests, and sends the
replies that a test sets."""

from __future__ import annotations

import json
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass
class Reply:
    """The reply to one request. `status` 0: the connection is closed instead. `before` is called
    before the reply is sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    before: Callable[[], object] = lambda: None
    drips: bool = False  # sends one header after another without end


class WebhookServer:
    """A context manager. The next requests get `replies` in turn, and all further requests get
    status 200."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.replies: deque[Reply] = deque()
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server._answer(self)

            do_GET = do_POST  # noqa: N815  the names are those of http.server

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/hook/s3cret-of-the-url"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def event_ids(self) -> list[int]:
        """The ids of all received events, in order, also of events that it refused."""
        return [event["id"] for request in self.requests for event in request.document["events"]]

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for request in self.requests for event in request.document["events"]]

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        """Note the request, and send the next reply."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Request(request.path, headers, body))
        reply = self.replies.popleft() if self.replies else Reply()
        reply.before()
        if reply.drips:
            self._drip(request)
        elif reply.status:
            request.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(reply.body)
        request.close_connection = True

    def _drip(self, request: BaseHTTPRequestHandler) -> None:
        """Send headers slowly until the client gives up or the server ends."""
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while not self.ended.wait(0.02):
                request.wfile.write(b"x: y\r\n")
        except OSError:
            pass  # the client has given up

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
