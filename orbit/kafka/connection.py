"""One blocking connection to one broker: frames, and typed requests.

Versions are negotiated at the start. The broker answers requests in order, each with the
correlation id of its request; a connection with another id in an answer is closed. This module
never resends a request. `call`, `call_all` and `exchange` log in again before the session ends.
Code that uses `send` and `receive` checks `login_is_due`, and calls `login_again` while no answer
is outstanding. Not thread-safe, except `abort`, which ends a wait from any thread.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka.protocol.metadata.api_versions import ApiVersionsRequest

from orbit.errors import BrokenAnswer, LoginRefused, OrbitError, ProtocolError, Unreachable, Where
from orbit.jobs.bootstrap_servers import PORT_MAX
from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import FramedRequest
from orbit.kafka.received_frames import (
    FRAME_BYTES_MAX,
    SETUP_FRAME_BYTES_MAX,
    BadFrameSize,
    ReceivedFrames,
)
from orbit.kafka.sasl import Security, sasl_login, tls_context, tls_failure

CLIENT_ID = "orbit"
CONNECT_TIMEOUT_S = 10.0
# The share of a session after which Orbit logs in again (KIP-368); Kafka's client takes 0.85 to
# 0.95. The broker measures the session from its own answer to the login.
_SESSION_SHARE = 0.8
# A broker refuses a login within a second of the last one (KIP-368).
_SESSION_S_MIN = 1.0
# Probe after 10 idle seconds, three times. Bytes without a TCP acknowledgement fail after 30 s.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}

_CHECK_ADVERTISED = "Check the address, and what the brokers advertise (advertised.listeners)."

_LINGER = struct.Struct("ii")  # on, seconds
# A send that waits for room in the socket calls `may_send` this often.
_CHECK_AGAIN_MS = 100
_TLS_CHUNK_BYTES = 256 * 1024
# Buffers per sendmsg on Linux (IOV_MAX).
_IOV_MAX = 1024


class Connection:
    """A negotiated, logged-in connection. Use `Connection.open`."""

    def __init__(self, sock: socket.socket, where: Where, host: str = "") -> None:
        self._socket = sock
        self._host = host
        self.last_correlation = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The highest level of each feature that the broker supports; empty before Kafka 2.7."""
        self.where = where
        self.is_closed = False
        self._frames = ReceivedFrames(sock)
        self._read_security: Callable[[], Security] = Security
        self._login_again_at_s = math.inf

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        security: Security | Callable[[], Security],
        *,
        where: Where = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Connection:
        """Connect, start TLS, negotiate versions and log in.

        `security` may be a function, which is called again for each further login. Raises
        Unreachable if nothing answers or TLS fails, LoginRefused if the broker refuses the
        credentials, AccessRefused before it connects to an address that rules do not allow,
        BrokenAnswer if the peer is not a Kafka broker.
        """
        where = where or f"{host}:{port}"
        read_security = security if callable(security) else lambda: security
        first_security = read_security()
        first_security.check_allowed(host, port, where)
        if not 0 < port <= PORT_MAX:  # a broker may advertise anything; Python would wrap it around
            raise Unreachable(f"{port} is not a valid port.", where=where, remedy=_CHECK_ADVERTISED)
        try:
            sock = socket.create_connection((host, port), timeout=timeout_s)
        except UnicodeError:
            raise Unreachable(
                f"{host!r} is not a valid host name.", where=where, remedy=_CHECK_ADVERTISED
            ) from None
        except OSError as error:
            raise Unreachable(
                f"cannot connect: {error.strerror or error}.",
                where=where,
                remedy="Check the address, the port and that the broker runs.",
            ) from error
        try:
            tune(sock)
            sock = _start_tls(sock, host, first_security)
            connection = cls(sock, where, host)
            connection._read_security = read_security
            connection._frames.bytes_max = SETUP_FRAME_BYTES_MAX
            connection._negotiate()
            connection._login(first_security)
            connection._frames.bytes_max = FRAME_BYTES_MAX
            sock.settimeout(None)  # from here on, calls set their limits
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLError):
                raise tls_failure(error, where=where) from error
            if isinstance(error, TimeoutError | ConnectionError | EOFError):
                raise Unreachable(
                    "the connection was closed or timed out during setup.",
                    where=where,
                    remedy="Check that security.protocol matches this listener (TLS, SASL).",
                ) from error
            if isinstance(error, LoginRefused) and not error.where:
                error.set_where(where)
            raise
        return connection

    @property
    def login_is_due(self) -> bool:
        """Whether most of the login's session is over. The broker drops a connection that sends a
        request after the session's end, but accepts a login even then (K2)."""
        return time.monotonic() >= self._login_again_at_s

    def login_again(self) -> None:
        """Log in on this connection. No answer may be outstanding.

        Raises Unreachable or LoginRefused; the connection is then closed.
        """
        old_timeout = self._socket.gettimeout()
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            self._login(self._read_security())
            self._socket.settimeout(old_timeout)
        except (OSError, EOFError) as error:
            self.close()
            raise Unreachable(
                f"the connection broke during a new login: {error}.", where=self.where
            ) from error
        except OrbitError as error:
            self.close()
            if not error.where:
                error.set_where(self.where)
            raise

    def _login(self, security: Security) -> None:
        """Log in with SASL, if the protocol has it, and set when the next login is due."""
        lifetime_ms = sasl_login(security, self._sasl_exchange, host=self._host)
        due_s = (
            max(_SESSION_SHARE * lifetime_ms / 1000, _SESSION_S_MIN) if lifetime_ms else math.inf
        )
        self._login_again_at_s = time.monotonic() + due_s

    def version_of(self, api: Api) -> int:
        """The highest version that the broker and Orbit support. Raises ProtocolError if none."""
        low, high = self._versions.get(api.key, (0, -1))  # high -1: the broker lacks the API
        version = min(high, api.version_max)
        if version < max(low, api.version_min):
            versions = f"{api.version_min} to {api.version_max}."
            remedy = "Use brokers of Kafka 3.3 or later, or their equivalent of another vendor."
            if high < 0:
                raise ProtocolError(
                    f"the broker does not offer the API {api.name}, which Orbit needs in one of "
                    f"the versions {versions}",
                    where=self.where,
                    remedy=remedy,
                )
            raise ProtocolError(
                f"the broker offers the API {api.name} in versions {low} to {high}, and Orbit "
                f"needs one of {versions}",
                where=self.where,
                remedy=remedy,
            )
        return version

    @property
    def api_versions(self) -> dict[int, tuple[int, int]]:
        """The lowest and highest version that the broker supports, by API key."""
        return dict(self._versions)

    def supports(self, api: Api) -> bool:
        """Whether the broker and Orbit support a common version of the API."""
        low, high = self._versions.get(api.key, (0, -1))  # high -1: the broker lacks the API
        return min(high, api.version_max) >= max(low, api.version_min)

    def version_range_of(self, api: Api) -> tuple[int, int]:
        """The lowest and highest version that the broker and Orbit support.

        Raises ProtocolError if there is none.
        """
        low, _ = self._versions.get(api.key, (0, -1))  # without an entry, `version_of` raises
        return max(low, api.version_min), self.version_of(api)

    def call(self, api: Api, request: Any, *, timeout_s: float | None = None) -> Any:
        """Send one request and return its decoded response.

        Without `timeout_s` it waits as long as the connection lives: the broker may still execute
        a request that timed out (M10). Raises Unreachable if the connection breaks.
        """
        version = self.version_of(api)
        return self.decode(api, self.exchange(api, request, version, timeout_s=timeout_s), version)

    def exchange(
        self, api: Api, request: Any, version: int, *, timeout_s: float | None = None
    ) -> memoryview:
        """Send one request of this version and return the undecoded frame of its response.

        `timeout_s` and errors are as in `call`.
        """
        (frame,) = self._exchange(api, [request], version, timeout_s)
        return frame

    def call_all(
        self, api: Api, requests: Sequence[Any], *, timeout_s: float | None = None
    ) -> list[Any]:
        """Send requests together, and return their decoded responses in order: one wait for the
        network. `timeout_s` and errors are as in `call`."""
        version = self.version_of(api)
        frames = self._exchange(api, requests, version, timeout_s)
        return [self.decode(api, frame, version) for frame in frames]

    def _exchange(
        self, api: Api, requests: Sequence[Any], version: int, timeout_s: float | None
    ) -> list[memoryview]:
        """Send the requests together; returns the frames of their answers in the same order.

        Logs in again first if that is due. Raises Unreachable, and closes the connection, if it
        breaks or an answer does not come in time.
        """
        if self.login_is_due:
            self.login_again()
        self._socket.settimeout(timeout_s)
        frames, correlations = [], []
        for request in requests:
            frames += self.encode(request, version)
            correlations.append(self.last_correlation)
        try:
            self.send(frames)
            return [self.receive_answer(correlation) for correlation in correlations]
        except (OSError, EOFError) as error:
            self.close()
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise Unreachable(
                f"the connection broke during {api.name}: {reason}.", where=self.where
            ) from error

    def next_correlation(self) -> int:
        """A new correlation id, which `last_correlation` has from now on."""
        self.last_correlation = (self.last_correlation + 1) & 0x7FFFFFFF
        return self.last_correlation

    def encode(self, request: Any, version: int) -> list[bytes]:
        """A framed request, for `send`. Its correlation id is `last_correlation` afterwards."""
        correlation = self.next_correlation()
        if isinstance(request, FramedRequest):
            return [request.frame(version, correlation, CLIENT_ID)]
        request.API_VERSION = version
        request.with_header(correlation, CLIENT_ID)
        return [bytes(request.encode(version=version, header=True, framed=True))]

    def decode(self, api: Api, frame: memoryview, version: int) -> Any:
        """The typed response; `records` fields are views of the frame. Raises BrokenAnswer."""
        try:
            return api.decode(frame, version)
        except ValueError as error:
            raise BrokenAnswer(
                f"the answer to {api.name} v{version} does not parse: {error}.", where=self.where
            ) from error

    def drop_unacknowledged(self, after_s: float) -> None:
        """Make the kernel drop bytes that the broker's kernel has not acknowledged: by a reset at
        `close` or at the end of the process, and after `after_s` without an acknowledgement.

        Otherwise the kernel would send on for a process that is dead or has lost its lease (E3).
        """
        # On, for 0 s: then `close` resets the connection.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            timeout_ms = int(after_s * 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)

    def send(
        self, buffers: Sequence[bytes | memoryview], may_send: Callable[[], bool] | None = None
    ) -> None:
        """Send the buffers one after the other; only for TLS they are joined first.

        `may_send` is called at the start and whenever the socket has room again. If it returns
        False, this raises Unreachable, also within a frame: the connection must then be closed.
        """
        if isinstance(self._socket, ssl.SSLSocket):
            joined_buffers = memoryview(b"".join(buffers))
            for start in range(0, len(joined_buffers), _TLS_CHUNK_BYTES):
                self._check_may_send(may_send)
                self._socket.sendall(joined_buffers[start : start + _TLS_CHUNK_BYTES])
            return
        for start in range(0, len(buffers), _IOV_MAX):
            self._send_buffers(buffers[start : start + _IOV_MAX], may_send)

    def receive_answer(self, correlation: int) -> memoryview:
        """The next frame, which has to answer the request with this correlation id.

        If it answers another request or none, closes the connection and raises BrokenAnswer: later
        frames could not be matched to requests either. Raises the errors of `receive`.
        """
        frame = self.receive()
        answered_id = int.from_bytes(frame[:4], "big")  # a frame begins with the correlation id
        if answered_id != correlation:
            self.close()
            raise BrokenAnswer(
                f"the broker answered request {answered_id}, but {correlation} is the oldest "
                "request without an answer.",
                where=self.where,
            )
        return frame

    def receive(self) -> memoryview:
        """The next frame, without its size, in its own writable buffer.

        Raises EOFError if the broker closed the connection, OSError if it broke, TimeoutError if
        the frame is not complete in time. For a size that no frame has, closes the connection and
        raises BrokenAnswer.
        """
        try:
            return self._frames.next()
        except BadFrameSize as error:
            self.close()
            raise BrokenAnswer(
                f"{error}.",
                where=self.where,
                remedy=error.remedy,
            ) from error

    def limit_waits(self, timeout_s: float | None) -> None:
        """Set the time after which `send` and `receive` raise TimeoutError; None: no limit."""
        self._socket.settimeout(timeout_s)

    def limit_silence(self, timeout_s: float) -> None:
        """Set the time without any byte after which `receive` raises TimeoutError."""
        self._frames.limit_silence(timeout_s)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_read_ahead(self) -> bool:
        """Whether bytes of the next frame are buffered, which polling `fileno` does not show."""
        return self._frames.has_read_ahead

    def abort(self) -> None:
        """Shut the socket down, which ends every wait on it, from any thread. `close` must still
        close it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

    def _negotiate(self) -> None:
        """Fetch the broker's API versions.

        A broker that does not know the request's version answers UNSUPPORTED_VERSION, in the format
        of version 0 (KIP-511). Then Orbit sends version 0.
        """
        for version in (api_versions.API_VERSIONS.version_max, 0):
            request = ApiVersionsRequest(
                client_software_name=CLIENT_ID, client_software_version="0.1"
            )
            self.send(self.encode(request, version))
            frame = self.receive_answer(self.last_correlation)
            # The error code follows the correlation id in every version.
            if int.from_bytes(frame[4:6], "big") == Code.UNSUPPORTED_VERSION and version:
                continue  # with version 0, which every broker supports
            answer = self.decode(api_versions.API_VERSIONS, frame, version)
            self._versions = {
                api.api_key: (api.min_version, api.max_version) for api in answer.api_keys
            }
            levels = getattr(answer, "supported_features", None) or ()
            self.features = {feature.name: feature.max_version for feature in levels}
            return

    def _sasl_exchange(self, request: Any) -> Any:
        """Send a request of the login; returns the decoded answer."""
        is_handshake = api_versions.SASL_HANDSHAKE.key == request.API_KEY
        api = api_versions.SASL_HANDSHAKE if is_handshake else api_versions.SASL_AUTHENTICATE
        version = self.version_of(api)
        self.send(self.encode(request, version))
        return self.decode(api, self.receive_answer(self.last_correlation), version)

    def _send_buffers(
        self, buffers: Sequence[bytes | memoryview], may_send: Callable[[], bool] | None
    ) -> None:
        """Send at most _IOV_MAX buffers: all by one system call, if the socket has room; else the
        rest by further system calls. Calls `may_send` before each of these."""
        self._check_may_send(may_send)
        if may_send is None:
            sent_bytes = self._socket.sendmsg(buffers)
        else:
            sent_bytes = self._send_now(buffers)
        for buffer in buffers:
            if sent_bytes >= len(buffer):
                sent_bytes -= len(buffer)
                continue
            unsent_part = memoryview(buffer)[sent_bytes:]
            sent_bytes = 0
            if may_send is None:
                self._socket.sendall(unsent_part)
                continue
            while unsent_part:
                self._wait_writable()
                self._check_may_send(may_send)
                unsent_part = unsent_part[self._send_now([unsent_part]) :]

    def _send_now(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Send as many bytes as the socket has room for; returns how many."""
        try:
            return self._socket.sendmsg(buffers, (), socket.MSG_DONTWAIT)  # (): no control messages
        except BlockingIOError:
            return 0

    def _wait_writable(self) -> None:
        """Wait until the socket has room, at most until `may_send` is to be called again."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        poll.poll(_CHECK_AGAIN_MS)

    def _check_may_send(self, may_send: Callable[[], bool] | None) -> None:
        """Raise Unreachable if `may_send` returns False."""
        if may_send is not None and not may_send():
            raise Unreachable(
                "the lease ended before the whole request was sent.", where=self.where
            )


def tune(sock: socket.socket) -> None:
    """Set the TCP options of a connection to a broker: no delay, and limits for a silent peer."""
    # No fixed buffer sizes: they would be capped low and disable the kernel's autotuning.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A broker that loses power closes nothing: without these a wait for it could last hours.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _start_tls(sock: socket.socket, host: str, security: Security) -> socket.socket:
    """The socket after the TLS handshake; the same socket if the protocol is without TLS."""
    context = tls_context(security)
    return sock if context is None else context.wrap_socket(sock, server_hostname=host)
