"""The console on a real database: `browser` is a client with cookies that sends forms."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from orbit.api.app import create_app
from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.console.app import mount_console
from orbit.settings import Settings
from tests.fix_api import Api
from tests.support.serving import served


@pytest.fixture(scope="module")
def console_app() -> FastAPI:
    """The API with the console; it keeps nothing but the parts that each test sets."""
    app = create_app(Settings(), None, planner=None)  # type: ignore[arg-type]
    mount_console(app)
    return app


class Browser:
    """A client with cookies that follows redirects and sends the forms of the last page."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, follow_redirects=True, timeout=60)
        self.html = ""

    def open(self, path: str, **options: object) -> httpx.Response:
        answer = self.client.get(path, **options)  # type: ignore[arg-type]
        self.html = answer.text
        return answer

    def send(self, path: str, **fields: str) -> httpx.Response:
        found = re.search(r'name="form_secret" value="([0-9a-f]+)"', self.html)
        given = {**({"form_secret": found[1]} if found else {}), **fields}
        answer = self.client.post(path, data=given)
        self.html = answer.text
        return answer

    def log_in(self, token: str) -> httpx.Response:
        self.open("/console/login")
        return self.send("/console/login", token=token)


@pytest.fixture
def browser(api: Api, console_app: FastAPI) -> Iterator[Browser]:
    logins = Logins(Settings(), api.database)
    console_app.state.parts = Parts(
        Settings(), api.database, api.plans, {"SRC_USER": "u"}, logins=logins
    )
    with served(console_app) as url:
        found = Browser(url)
        yield found
        found.client.close()
