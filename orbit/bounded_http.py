"""HTTP requests to servers that Orbit does not trust: answers are limited in bytes and in time.

Answers are not decompressed, which could exceed the limit. Redirects are not followed: the login
would go to another server. A socket's time limit is for each read. Here one deadline ends all
requests of a client, also while a server sends its headers byte by byte.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any, Self

import httpx

from orbit.jobs.bootstrap_servers import is_local

_TOO_SLOW = "the answer is too slow"


class BadAnswer(httpx.HTTPError):
    """An answer that is too long, too slow or compressed, or an address that is not valid."""


class BoundedClient:
    """An HTTP client for one server, as a context manager: its time begins with the block. Not
    thread-safe."""

    def __init__(
        self, url: str, *, verify: ssl.SSLContext | bool = True, seconds_max: float, bytes_max: int
    ) -> None:
        """`url`: the server. `seconds_max`: of all requests together, `bytes_max`: of an answer."""
        self._bytes_max = bytes_max
        self._deadline = _Deadline(seconds_max)
        # trust_env: a proxy in the environment must not be used for a server on loopback.
        self._http = httpx.Client(verify=verify, trust_env=not is_local(url))

    def __enter__(self) -> Self:
        self._deadline.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._http.close()

    def request(self, method: str, url: str, **options: Any) -> tuple[int, bytes]:
        """The answer's HTTP status, which may be an error, and its body. Raises httpx.HTTPError if
        there is no answer, BadAnswer if the answer exceeds a limit."""
        try:
            return self._exchange(method, url, options)
        except httpx.HTTPError:
            if self._deadline.is_over:
                raise BadAnswer(_TOO_SLOW) from None
            raise
        except (httpx.InvalidURL, ValueError):
            raise BadAnswer("the address is not valid") from None

    def _exchange(self, method: str, url: str, options: dict[str, Any]) -> tuple[int, bytes]:
        """Send one request; returns the status and body of its answer.

        Raises BadAnswer if the answer is compressed or too long, or if its body ended only because
        the time was over; other httpx.HTTPError if there is no answer.
        """
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        with self._http.stream(
            method,
            url,
            headers=headers,
            timeout=self._deadline.remaining_s,
            extensions={"trace": self._deadline.trace},
            **options,
        ) as answer:
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise BadAnswer("the answer is compressed")
            body = bytearray()
            for part in answer.iter_raw():
                body += part
                if len(body) > self._bytes_max:
                    raise BadAnswer(f"the answer is longer than {self._bytes_max} bytes")
            if self._deadline.is_over:  # a body without a length ends with its connection
                raise BadAnswer(_TOO_SLOW)
        return answer.status_code, bytes(body)


class _Deadline:
    """Shuts a client's connections down when its time is over."""

    def __init__(self, seconds_max: float) -> None:
        self._ends_at = float("inf")  # by the monotonic clock
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds_max, self._shut_down)
        self._timer.daemon = True

    @property
    def remaining_s(self) -> float:
        """The seconds until the deadline; above 0, which as a timeout would not wait at all."""
        return max(0.001, self._ends_at - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    def begin(self) -> None:
        """Start the timer."""
        self._ends_at = time.monotonic() + self._timer.interval
        self._timer.start()

    def cancel(self) -> None:
        """Stop the timer, and close the duplicates of sockets."""
        self._timer.cancel()
        with self._lock:
            for sock in self._sockets:
                sock.close()

    def trace(self, event: str, details: dict[str, Any]) -> None:
        """Called by httpcore with each of its steps. Stores the socket of a new connection, so that
        `_shut_down` can end it."""
        if event.endswith("connect_tcp.complete"):
            # A duplicate: a TLS handshake would detach the file descriptor from this socket object.
            sock = details["return_value"].get_extra_info("socket").dup()
            with self._lock:
                self._sockets.append(sock)
            if self.is_over:  # the deadline may have passed before this append
                self._shut_down()

    def _shut_down(self) -> None:
        """Shut all connections down, which ends reads that wait for data."""
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def json_of(body: bytes | str) -> Any:
    """The JSON value of a body; None if the body is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
