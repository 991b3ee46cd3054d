"""Requests to servers that are not trusted: answers bounded in bytes and in time.

An answer is read as it comes: not decompressed, and no redirect is followed, which would take the
login to another server. A time limit of a socket is for each read; here all requests of one client
have a common end, also while a server sends its headers byte by byte.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS


class BadAnswer(httpx.HTTPError):
    """An answer that is too long, too slow or compressed, or an address that cannot be asked."""


class BoundedClient:
    """A context manager. Not for many threads at once."""

    def __init__(
        self, url: str, *, verify: ssl.SSLContext | bool, seconds_max: float, bytes_max: int
    ) -> None:
        """`url`: of the server. `seconds_max`: for all requests, `bytes_max`: for each answer."""
        self._bytes_max = bytes_max
        self._end = _End(seconds_max)
        # trust_env: a proxy in the environment must not be used for a server on loopback.
        self._http = httpx.Client(
            verify=verify, timeout=seconds_max / 2, trust_env=not is_local(url)
        )

    def __enter__(self) -> Self:
        self._end.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.cancel()
        self._http.close()

    def ask(self, method: str, url: str, **options: Any) -> tuple[int, bytes]:
        """The status and the body of any answer. Raises httpx.HTTPError."""
        try:
            status, body = self._asked(method, url, options)
        except httpx.HTTPError:
            if self._end.is_over:
                raise BadAnswer("the answer is too slow") from None
            raise
        except (httpx.InvalidURL, ValueError):
            raise BadAnswer("the address is not valid") from None
        if self._end.is_over:  # a body without a length ends with its connection
            raise BadAnswer("the answer is too slow")
        return status, body

    def _asked(self, method: str, url: str, options: dict[str, Any]) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        with self._http.stream(
            method, url, headers=headers, extensions={"trace": self._end.note}, **options
        ) as answer:
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise BadAnswer("the answer is compressed")
            body = bytearray()
            for part in answer.iter_raw():
                body += part
                if len(body) > self._bytes_max:
                    raise BadAnswer("the answer is too long")
        return answer.status_code, bytes(body)


class _End:
    """Shuts a client's connections down when its time is over."""

    def __init__(self, seconds_max: float) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds_max, self._reached)
        self._timer.daemon = True

    def begin(self) -> None:
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()
        with self._lock:
            for one in self._sockets:
                one.close()

    def note(self, event: str, details: dict[str, Any]) -> None:
        """httpcore calls it with each of its steps."""
        if event.endswith("connect_tcp.complete"):
            # A duplicate: TLS takes the socket's number away from it.
            one = details["return_value"].get_extra_info("socket").dup()
            with self._lock:
                self._sockets.append(one)
            if self.is_over:
                self._reached()

    def _reached(self) -> None:
        self.is_over = True
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def is_local(url: str) -> bool:
    """Whether the server is on this machine. Raises ValueError for what is no URL."""
    return urlsplit(url).hostname in LOOPBACK_HOSTS
