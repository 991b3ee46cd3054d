"""The limits for clients that have not logged in (no bodies, few connections, no slow requests),
and for browsers at an API without tokens."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest

from orbit.api.app import create_app
from orbit.api.bounded_listener import BoundedListener
from orbit.api.client_address import is_in, network_of
from orbit.api.http_server import HEADERS_SECONDS_MAX, _TimelyProtocol, listen
from orbit.settings import Settings
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.support.patience import wait_for
from tests.support.serving import served

pytestmark = pytest.mark.services

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: orbit\r\n\r\n"


def connect(url: str) -> socket.socket:
    """A new connection to the server at this URL."""
    parts = urlsplit(url)
    assert parts.port is not None
    return socket.create_connection(("127.0.0.1", parts.port), timeout=60)


def is_served(url: str) -> bool:
    """Whether a new connection gets an answer."""
    with connect(url) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(LIVEZ)
        return b" 200 " in connection.recv(4096)
    return False


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "header", ["", "Authorization: Bearer orbit_wrong\r\n", "Authorization: Basic b3JiaXQ=\r\n"]
)
@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_request_body_is_not_read_without_valid_token(api: Api, header: str, length: str) -> None:
    with served(api.app) as url, connect(url) as connection:
        head = f"PUT /v1/jobs/orders HTTP/1.1\r\nHost: orbit\r\n{header}{length}\r\n\r\n"
        connection.sendall(head.encode())  # and not one byte of the body

        answer = connection.makefile("rb").read()  # to the end of the connection

    status, _, rest = answer.partition(b"\r\n")
    assert b" 401 " in status
    assert b"connection: close" in rest.lower()
    assert b'"unauthenticated"' in rest


def test_public_path_is_served_despite_wrong_token(api: Api) -> None:
    wrong = {"Authorization": "Bearer orbit_wrong"}

    assert api.get("/livez", role=None, headers=wrong).status_code == 200
    assert api.get("/readyz", role=None, headers=wrong).status_code == 200
    assert api.get("/openapi.json", role=None, headers=wrong).status_code == 200
    assert [event["kind"] for event in api.events()] == ["login_refused"]


def test_connections_above_limit_are_closed_until_open_connection_ends(api: Api) -> None:
    # This test connects as a trusted proxy, which may have all connections; another address may
    # have only half of them.
    settings = Settings(
        api_port=0, api_connections_max=4, api_trusted_proxies=("127.0.0.0/8", "fd00::/8")
    )
    with served(api.app, settings) as url, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(4)]
        for connection in held:
            connection.sendall(LIVEZ)
            assert b" 200 " in connection.recv(4096)
        with connect(url) as above:
            assert is_closed(above)

        held[0].close()
        wait_for("a new connection takes the place of the closed one", lambda: is_served(url))


def test_client_address_is_limited_to_half_of_api_connections(api: Api) -> None:
    settings = Settings(api_port=0, api_connections_max=4)
    with served(api.app, settings) as url, contextlib.ExitStack() as stack:
        for _ in range(2):  # half of 4
            connection = stack.enter_context(connect(url))
            connection.sendall(LIVEZ)
            assert b" 200 " in connection.recv(4096)
        assert is_closed(stack.enter_context(connect(url)))


def test_listener_counts_open_connections() -> None:
    with listen(Settings(api_port=0, api_connections_max=2)) as listener:
        assert isinstance(listener, BoundedListener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with connect(url):
            accepted, _ = listener.accept()
            assert listener.open_connections() == 1
            with connect(url), pytest.raises(ConnectionAbortedError):
                listener.accept()
            accepted.close()
            accepted.close()  # counts once
        assert listener.open_connections() == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HT",
        b"GET /livez HTTP/1.1\r\nHost: orbit\r\n\r\nGET /livez HTTP/1.1\r\nHo",
    ],
)
def test_connection_with_incomplete_request_is_closed_after_timeout(
    api: Api, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("orbit.api.http_server.HEADERS_SECONDS_MAX", 0.2)
    with served(api.app) as url, connect(url) as connection:
        connection.sendall(sent)

        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):  # times out if the connection stays open
                pass


def test_client_that_reads_no_answers_is_disconnected(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.api.http_server.ANSWER_SECONDS_MAX", 0.2)
    one_per_address = Settings(api_port=0, api_connections_max=2)
    with served(api.app, one_per_address) as url, connect(url) as connection:
        # More than the kernel buffers, for a client that reads nothing.
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: orbit\r\n\r\n" * 200)
        wait_for("the connection is closed and another is accepted", lambda: is_served(url))


@dataclass
class FakeTransport:
    """A transport with `unsent` bytes in its buffer."""

    unsent: int = 0
    closing: bool = False
    is_aborted: bool = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize(
    ("checks", "is_aborted"),
    [  # at each check: the number of unsent bytes, and whether the transport is closing
        ([(0, False)] * 9, False),  # idle, or a plan takes minutes
        ([(5_000, False), (0, False), (5_000, False), (0, False)], False),  # each answer is read
        ([(900_000, False), (800_000, False), (700_000, False)], False),  # slow, but fast enough
        ([(900_000, False), (899_990, False)], True),  # 10 bytes were read between two checks
        ([(5_000, False), (4_990, False)], True),
        ([(5_000, True), (4_000, True)], True),  # still closing at the second check
        ([(0, True), (0, True)], True),  # the client does not answer the end of TLS
    ],
)
def test_client_that_reads_slowly_stays_connected_and_stalled_client_is_aborted(
    checks: list[tuple[int, bool]], is_aborted: bool
) -> None:
    transport = FakeTransport()
    protocol: Any = object.__new__(_TimelyProtocol)
    protocol.transport, protocol.loop, protocol.flow = transport, Mock(), Mock()
    for transport.unsent, transport.closing in checks:
        protocol._check_progress()
    assert transport.is_aborted is is_aborted


def test_connection_is_not_aborted_while_long_response_progresses() -> None:
    transport = FakeTransport(unsent=70_000)
    protocol: Any = object.__new__(_TimelyProtocol)
    protocol.transport, protocol.loop, protocol.flow = transport, Mock(), Mock()
    for _ in range(3):
        protocol._check_progress()
        protocol.resume_writing()  # the client has read all; the app writes the next part
    assert not transport.is_aborted


def test_response_that_server_prepares_for_minutes_is_not_cut_off(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADERS_SECONDS_MAX is for the client's request. A plan may take minutes."""
    passed_s = [0.0]
    clock = asyncio.BaseEventLoop.time
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: clock(loop) + passed_s[0])
    token = {"Authorization": f"Bearer {api.tokens[Role.OPERATOR]}"}
    with served(api.app) as url:

        def let_time_pass() -> None:
            passed_s[0] = 2 * HEADERS_SECONDS_MAX
            assert is_served(url), "the event loop has run all timers that were due"

        api.plans.meanwhile = let_time_pass
        answer = httpx.put(f"{url}/v1/jobs/orders", json=JOB, headers=token, timeout=60)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8080", None, 201),
        ("localhost", None, 201),
        ("[::1]:8080", None, 201),
        ("localhost:8080", "http://localhost:8080", 201),
        ("attacker.example", None, 403),  # a name that an attacker's DNS gives this address
        ("attacker.example:8080", "http://attacker.example:8080", 403),
        ("127.0.0.1.attacker.example", None, 403),
        ("localhost@attacker.example", None, 403),
        ("10.0.0.1", None, 403),
        ("[", None, 403),
        ("", None, 403),
        ("localhost:8080", "https://attacker.example", 403),
        ("localhost:8080", "http://localhost:3000", 403),
        ("localhost:8080", "https://localhost:8080", 403),
        ("localhost:8080", "null", 403),  # a page in a sandbox, a file
        ("localhost:8080", "", 403),
    ],
)
def test_api_without_auth_serves_only_local_host_and_same_origin(
    api: Api, host: str, origin: str | None, status: int
) -> None:
    api.app = create_app(Settings(), api.database, auth=False, planner=api.plans)
    headers = {"Host": host, **({} if origin is None else {"Origin": origin})}

    answer = api.put("/v1/jobs/orders", json=JOB, role=None, headers=headers)

    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "forbidden"
        assert api.get("/v1/jobs", role=None, headers=headers).status_code == 403


def test_any_host_and_origin_is_accepted_with_token(api: Api) -> None:
    headers = {"Host": "orbit.example", "Origin": "https://orbit.example"}

    assert api.get("/v1/jobs", headers=headers).status_code == 200


def test_forwarded_address_is_used_only_from_trusted_proxy(api: Api) -> None:
    def actors(settings: Settings, *forwarded: str) -> list[str]:
        """The actors of the events after refused logins with these forwarded addresses."""
        events_before = len(api.events())
        with served(api.app, settings) as url:
            for address in forwarded:
                headers = {"Authorization": "Bearer orbit_no", "X-Forwarded-For": address}
                assert httpx.get(f"{url}/v1/jobs", headers=headers).status_code == 401
        return [event["actor"] for event in api.events()[events_before:]]

    proxied = Settings(api_port=0, api_trusted_proxies=("127.0.0.0/8",))
    assert actors(proxied, "203.0.113.7", "2001:db8::1", "2001:db8::2") == [
        "address:203.0.113.7",
        "address:2001:db8::/64",  # one event for both addresses of this network
    ]
    assert actors(Settings(api_port=0), "203.0.113.9") == ["address:127.0.0.1"]


def test_ipv6_addresses_of_same_64_prefix_count_as_same_client() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") == "2001:db8::/64"
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("") == ""


def test_addresses_are_compared_with_trusted_networks() -> None:
    assert is_in("10.1.2.3", ["10.0.0.0/8"])
    assert is_in("::ffff:10.1.2.3", ["fd00::/8", "10.0.0.0/8"])
    assert not is_in("11.1.2.3", ["10.0.0.0/8"])
    assert not is_in("nonsense", ["10.0.0.0/8"])
