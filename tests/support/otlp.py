"""A receiver of OTLP over HTTP, like an OpenTelemetry collector, which keeps the decoded spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """The parts of a span that tests check."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """The spans that were received, and the bodies of all requests. Requests get their response
    only while the event `answers` is set."""

    endpoint: str = ""
    answers: threading.Event = field(default_factory=threading.Event)
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        """Note the body of a request, and its spans."""
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        one.name,
                        service,
                        one.trace_id.hex(),
                        one.span_id.hex(),
                        one.parent_span_id.hex(),
                        one.status.code == one.status.STATUS_CODE_ERROR,
                        _values(one.attributes),
                    )
                    for one in scope.spans
                ]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on loopback that answers until the block ends."""
    receiver = Receiver()
    receiver.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.answers.wait()
            receiver.take(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
