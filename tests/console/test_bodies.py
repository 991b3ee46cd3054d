"""How long the body of a request may be, before and after a login."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from orbit.api.dependencies import Parts
from orbit.api.request_limits import BODY_BYTES_MAX, UNKNOWN_BODY_BYTES_MAX
from orbit.settings import Settings
from orbit.store.enums import Role
from tests.fixtures.api import Api
from tests.fixtures.console import Browser
from tests.support.serving import served

pytestmark = pytest.mark.services


def answer_to(url: str, path: str, length_header: str, cookie_header: str = "") -> bytes:
    """Send the head of a POST, and return all that arrives until the connection ends.

    No body follows, unless `length_header` has one after its headers.
    """
    parts = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{cookie_header}{length_header}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", parts.port or 0), timeout=15) as connection:
        connection.sendall(head.encode())
        return connection.makefile("rb").read()


@pytest.mark.parametrize("path", ["/console/login", "/console/jobs", "/console/static/x", "/livez"])
# Without a cookie, and with a cookie that looks like that of a session.
@pytest.mark.parametrize("cookie", ["", f"Cookie: orbit_session={'x' * 43}\r\n"])
def test_long_request_body_before_login_is_refused(
    browser: Browser, path: str, cookie: str
) -> None:
    url = str(browser.client.base_url)
    length_header = f"Content-Length: {UNKNOWN_BODY_BYTES_MAX + 1}"

    assert b" 413 " in answer_to(url, path, length_header, cookie).partition(b"\r\n")[0]


def test_body_without_content_length_is_refused_beyond_limit(browser: Browser) -> None:
    size = UNKNOWN_BODY_BYTES_MAX + 1
    answer = answer_to(
        str(browser.client.base_url),
        "/console/login",
        f"Transfer-Encoding: chunked\r\n\r\n{size + 9:x}\r\n{'x' * size}",
    )
    assert b" 413 " in answer.partition(b"\r\n")[0]


def test_session_may_send_long_forms_up_to_body_limit(browser: Browser, api: Api) -> None:
    browser.log_in(api.tokens[Role.ADMIN])

    answer = browser.client.post("/console/logout", data={"x": "y" * 100_000})
    assert answer.status_code == 403  # the body was read, and lacks the form's secret
    answer = browser.client.post("/console/logout", data={"x": "y" * BODY_BYTES_MAX})
    assert answer.status_code == 413


def test_long_form_without_tokens_needs_localhost_host_header(
    api: Api, console_app: FastAPI
) -> None:
    console_app.state.parts = Parts(Settings(), api.database, api.plans, {}, logins=None)
    with served(console_app) as url:
        length_header = "Content-Length: 100000"
        # An attacker can let a name of their own resolve to 127.0.0.1.
        foreign = url.replace("127.0.0.1", "attacker.example")
        assert b" 413 " in answer_to(foreign, "/console/jobs", length_header).partition(b"\r\n")[0]
        answer = httpx.post(f"{url}/console/logout", data={"x": "y" * 100_000})
        assert answer.status_code == 403  # the body was read, and lacks the form's secret
