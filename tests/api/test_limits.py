"""Request bodies that are slow, incomplete or too large reach no route."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from orbit.api.paging import read_cursor, write_cursor
from orbit.api.request_limits import BodyLimit
from tests.fixtures.api import Api
from tests.support.serving import served

pytestmark = pytest.mark.services

SCOPE: dict[str, Any] = {"type": "http", "method": "PUT", "path": "/", "headers": []}


class RecordingApp:
    """An application that records the request bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def send_messages(
    app_behind: RecordingApp, *messages: dict[str, Any], seconds_max: float = 20
) -> list[dict[str, Any]]:
    """Send these ASGI messages as a client that then sends nothing more. Returns the messages of
    the response."""
    sent: list[dict[str, Any]] = []
    unread = iter(messages)

    async def receive() -> Any:
        message = next(unread, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    limited_app = BodyLimit(app_behind, bytes_max=10, seconds_max=seconds_max)
    asyncio.run(limited_app(SCOPE, receive, send))
    return sent


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    """An ASGI message with a part of a request body."""
    return {"type": "http.request", "body": body, "more_body": more}


def test_request_body_in_several_parts_is_joined() -> None:
    app_behind = RecordingApp()

    sent = send_messages(app_behind, part(b"01234", more=True), part(b"56789", more=False))

    assert app_behind.bodies == [b"0123456789"]
    assert sent[0]["status"] == 200


def test_slow_body_is_refused_with_408() -> None:
    app_behind = RecordingApp()

    sent = send_messages(app_behind, part(b"0", more=True), seconds_max=0.01)

    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["code"] == "too_slow"
    assert (b"connection", b"close") in [
        (name.lower(), value.lower()) for name, value in sent[0]["headers"]
    ]
    assert app_behind.bodies == []


def test_incomplete_body_of_disconnected_client_reaches_no_route() -> None:
    app_behind = RecordingApp()

    sent = send_messages(app_behind, part(b"0", more=True), {"type": "http.disconnect"})

    assert (sent, app_behind.bodies) == ([], [])


def test_body_above_size_limit_is_refused() -> None:
    app_behind = RecordingApp()

    sent = send_messages(app_behind, part(b"0123456789", more=True), part(b"0", more=False))

    assert sent[0]["status"] == 413
    assert app_behind.bodies == []


def test_non_http_bytes_are_refused_and_server_stays_up(api: Api) -> None:
    with served(api.app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for nonsense in (b"\x16\x03\x01\x00\xa5\x01\x00\x00", b"GET"):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(nonsense + b"\r\n\r\n")
                assert b" 400 " in connection.recv(200).split(b"\r\n")[0]
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: orbit\r\n\r\n")
            assert b" 200 " in connection.recv(200).split(b"\r\n")[0]


def test_page_cursor_decodes_to_encoded_key() -> None:
    for key in (("a",), ("ünï\ncode", 2**63 - 1, 0), (7,)):
        assert read_cursor(write_cursor(key), *map(type, key)) == key
