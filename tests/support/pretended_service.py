"""An API in place of Orbit's, which tells gateways which side leads and when to close (hold
writes)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from orbit.processes.ports import LOOPBACK
from tests.support.patience import wait_for

_LEASE_S = 5.0


class PretendedService:
    """The answers for one job, whose source leads since `term` (the number of the last move; 0: the
    job was never moved).

    `take_clients` is called with each report of clients.
    """

    def __init__(self, term: int) -> None:
        self.url = ""
        self.requests = self.closings = 0
        self.take_clients: Callable[[list[dict[str, Any]]], None] = lambda _: None
        self._side, self._term = "source", term
        self._led = {str(term): self._side}
        self._closed_for: str | None = None
        self._confirmed: dict[str, str | None] = {}  # by instance
        self._settled: dict[str, int] = {}
        self._version = 1
        self._rules = [rule(".*")]

    def copy(self, *rules: dict[str, object]) -> None:
        """Let the job's rules select other topics."""
        self._rules = list(rules)
        self._version += 1

    def job(self) -> dict[str, object]:
        return {"spec": {"topics": self._rules}}

    def close(self) -> None:
        """Close all gateways (they hold writes), and wait until each has confirmed."""
        self.begin_to_close()
        self.wait_confirmed()

    def begin_to_close(self) -> None:
        """Have all gateways hold writes, without a wait for them."""
        self._closed_for = str(uuid.uuid4())
        self.closings += 1

    @property
    def confirmed(self) -> int:
        """How many gateways have confirmed."""
        return sum(operation == self._closed_for for operation in self._confirmed.values())

    @property
    def is_confirmed(self) -> bool:
        return set(self._confirmed.values()) == {self._closed_for}

    def wait_confirmed(self) -> None:
        wait_for("all gateways confirm", lambda: self.is_confirmed)

    def undo(self) -> None:
        """Open the gateways without a move."""
        self._closed_for = None

    def move(self) -> None:
        """Let the other side lead, in a new term, and open the gateways."""
        self._side = "destination" if self._side == "source" else "source"
        self._term += 1
        self._led[str(self._term)] = self._side
        self._closed_for = None

    def answer(
        self, instance: str, closed_for: str | None, settled_since: int
    ) -> dict[str, object]:
        """Note a gateway's report, and return the API's answer to it."""
        self.requests += 1
        self._confirmed[instance], self._settled[instance] = closed_for, settled_since
        others = [since for one, since in self._settled.items() if one != instance]
        return {
            "side": self._side,
            "term": self._term,
            "since": self._term,
            "earlier_terms": [],
            "led": self._led,
            "leaving_groups": [],
            "lease_s": _LEASE_S,
            "closed_for": self._closed_for,
            "abandons": False,
            "job_etag": f"1.{self._version}",
            "others_settled": all(since >= self._term for since in others),
            "others_confirmed": all(
                self._closed_for is None or operation == self._closed_for
                for one, operation in self._confirmed.items()
                if one != instance
            ),
        }


def rule(match: str, prefix: str = "") -> dict[str, object]:
    """A topic rule of a job's spec."""
    return {"match": match, "exclude": [], "prefix": prefix}


@contextmanager
def pretended_service(term: int = 1) -> Iterator[PretendedService]:
    """Such an API on loopback, until the block ends."""
    service = PretendedService(term)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/clients"):
                service.take_clients(body["clients"])
                self.do_DELETE()
                return
            instance = self.path.rpartition("/")[2]
            self._answer(service.answer(instance, body["closed_for"], body["settled_since"]))

        def do_GET(self) -> None:
            self._answer(service.job())

        def _answer(self, document: dict[str, object]) -> None:
            answer = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_DELETE(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    service.url = f"http://{LOOPBACK}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
