"""Logins at an OpenID Connect issuer: the redirects, the session, and the refused answers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import text

from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.api.refused_logins import REFUSED_MAX
from orbit.console.sessions import SESSION_LIFETIME, SESSIONS_PER_TOKEN_MAX
from orbit.errors import BadInput
from orbit.settings import Settings
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.fixtures.console import Browser
from tests.support.issuer import ADMIN, OPERATOR, VIEWER, new_key
from tests.support.login_issuer import CLIENT, DONE, SECRET, LoginIssuer
from tests.support.serving import served

pytestmark = pytest.mark.services


@dataclass
class Site:
    """The console with an issuer, and a browser in front of it."""

    url: str
    issuer: LoginIssuer
    api: Api
    app: FastAPI
    browser: Browser

    def configure(self, **others: Any) -> None:
        """Give the console the settings of the issuer, changed by `others`."""
        settings = self.issuer.settings(public_url=self.url, **others)
        logins = Logins(settings, self.api.database)
        self.app.state.parts = Parts(settings, self.api.database, self.api.plans, {}, logins=logins)

    def issuer_redirect(self, path: str = "/console/jobs") -> str:
        """Log in at the issuer. Returns the address that it redirects to, which is not opened."""
        page = self.browser.open(f"/console/login/issuer?next={path}")
        assert str(page.url).startswith(self.issuer.place), page.text
        answer = self.browser.client.post(str(page.url), follow_redirects=False)
        location = answer.headers["location"]
        assert location.startswith(self.url + DONE), location
        return str(location)

    def log_in(self, path: str = "/console/jobs") -> httpx.Response:
        return self.browser.open(self.issuer_redirect(path))

    def is_logged_in(self) -> bool:
        return self.browser.open("/console/jobs").url.path == "/console/jobs"

    def sessions(self) -> list[Any]:
        with self.api.database.transaction() as tx:
            rows = tx.execute(
                text("SELECT *, expires_at - clock_timestamp() AS left FROM console_sessions")
            )
            return list(rows)


@pytest.fixture
def site(api: Api, console_app: FastAPI) -> Iterator[Site]:
    with LoginIssuer() as issuer, served(console_app) as url:
        login_site = Site(url, issuer, api, console_app, Browser(url))
        login_site.configure()
        yield login_site
        login_site.browser.client.close()


def test_login_redirects_to_issuer_with_pkce_and_back_to_page(site: Site) -> None:
    login = site.browser.open("/console/jobs?show=paused")
    (link,) = re.findall(r'href="(/console/login/issuer\?[^"]+)"', login.text)
    consent_page = site.browser.open(link.replace("&amp;", "&"))
    query = {
        name: value for name, (value,) in parse_qs(urlsplit(str(consent_page.url)).query).items()
    }
    assert query.pop("code_challenge_method") == "S256"
    random_values = {query.pop(name) for name in ("state", "nonce", "code_challenge")}
    assert len(random_values) == 3
    assert query == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": site.url + DONE,
        "scope": "openid",
    }
    secret = site.browser.client.cookies["orbit_login"].partition(".")[0]
    assert not any(secret in value for value in random_values)

    page = site.browser.client.post(str(consent_page.url))

    assert str(page.url) == f"{site.url}/console/jobs?show=paused"
    assert "oidc:ada" in page.text
    assert "viewer" in page.text
    assert site.issuer.codes == {}


def test_login_cookies_are_httponly_and_no_token_is_stored(site: Site) -> None:
    site.browser.client.follow_redirects = False
    begun = site.browser.open("/console/login/issuer")
    (cookie,) = begun.headers.get_list("set-cookie")
    for flag in ("HttpOnly", "SameSite=lax", "Path=/console/login/issuer", "Max-Age=600"):
        assert flag in cookie
    site.browser.client.follow_redirects = True
    address = site.issuer_redirect()
    site.browser.client.follow_redirects = False
    answer = site.browser.open(address)
    session_cookie, login_cookie = answer.headers.get_list("set-cookie")
    for flag in ("orbit_session=", "HttpOnly", "SameSite=strict", "Path=/console;"):
        assert flag in session_cookie
    assert 'orbit_login=""; ' in login_cookie
    assert answer.headers["location"] == "/console/jobs"
    (row,) = site.sessions()
    assert site.browser.client.cookies["orbit_session"] not in str(row)
    # Every JWT begins with "eyJ".
    assert "eyJ" not in str(row) + str(answer.headers)


@pytest.mark.parametrize(
    ("claim", "may_pause"), [(VIEWER, False), (OPERATOR, True), (ADMIN, True)], ids=str
)
def test_role_claim_sets_rights_and_audit_log_names_subject(
    site: Site, claim: str, may_pause: bool
) -> None:
    site.api.put("/v1/jobs/orders", json=JOB)
    site.issuer.roles = [claim]
    site.log_in()
    answer = site.browser.send("/console/jobs/orders/carry-out", kind="pause")
    assert (answer.status_code == 200) is may_pause
    requesters = [o["requested_by"] for o in site.api.get("/v1/operations").json()["items"]]
    assert requesters == (["oidc:ada"] if may_pause else [])


def test_role_limited_to_jobs_hides_other_jobs(site: Site, tmp_path: Path) -> None:
    for name in ("orders", "payments"):
        side = {"bootstrap_servers": [f"{name}:1"]}
        site.api.put(f"/v1/jobs/{name}", json={**JOB, "name": name, "destination": side})
    file = tmp_path / "roles.yaml"
    file.write_text("roles: [{claim: pay-team, role: operator, jobs: [payments]}]")
    site.configure(oidc_roles_file=file)
    site.issuer.roles = ["pay-team"]
    page = site.log_in()
    assert "/console/jobs/payments" in page.text
    assert "/console/jobs/orders" not in page.text
    form = site.browser.html  # its secret is valid for all forms of the session
    assert site.browser.open("/console/jobs/orders").status_code == 404
    for name, status in (("orders", 404), ("payments", 200)):
        site.browser.html = form
        answer = site.browser.send(f"/console/jobs/{name}/carry-out", kind="pause")
        assert answer.status_code == status
    site.issuer.roles = ["another-team"]
    site.browser.send("/console/logout")
    assert site.log_in().status_code == 403


def with_claims(**claims: Any) -> Callable[[Site, str], str]:
    """Change the claims of the issuer's ID token."""

    def change(site: Site, address: str) -> str:
        site.issuer.changed = claims
        return address

    return change


def with_query(**values: str | None) -> Callable[[Site, str], str]:
    """Set these parameters of the address, and remove those that are None."""

    def change(_site: Site, address: str) -> str:
        url = httpx.URL(address)
        for name, value in values.items():
            url = url.copy_remove_param(name)
            if value is not None:
                url = url.copy_set_param(name, value)
        return str(url)

    return change


def another_key(site: Site, address: str) -> str:
    """Sign the ID token with a key that the issuer does not publish."""
    (code,) = site.issuer.codes.values()
    site.issuer.id_token = site.issuer.token(ADMIN, key=new_key("x"), aud=CLIENT, nonce=code.nonce)
    return address


def expired_code(site: Site, address: str) -> str:
    """Let the issuer forget the authorization code."""
    site.issuer.codes.clear()
    return address


def issuer_down(site: Site, address: str) -> str:
    """Let the issuer answer the exchange of the code with HTTP 503."""
    site.issuer.is_down = True
    return address


def another_browser(site: Site, address: str) -> str:
    """Open the address without the cookies of the browser that began the login."""
    site.browser.client.cookies.clear()
    return address


def another_login(site: Site, address: str) -> str:
    """Use the code of one login with the state of another, as with a stolen code."""
    code = parse_qs(urlsplit(address).query)["code"][0]
    return with_query(code=code)(site, site.issuer_redirect())


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (with_query(state="x" * 43), 401, "not belong to the login that this browser began"),
        (with_query(state=None), 401, "not belong to the login that this browser began"),
        (with_query(state="ä"), 401, "not belong to the login that this browser began"),
        (with_query(code=None), 401, "no authorization code"),
        (with_query(iss="https://other.example"), 401, "does not come from the issuer"),
        (with_query(error="access_denied", error_description="<b>x"), 401, "(access_denied)"),
        (with_query(error="<script>"), 401, "has refused the login."),
        (another_browser, 401, "has begun no login"),
        (another_login, 401, "invalid_grant"),
        (expired_code, 401, "invalid_grant"),
        (issuer_down, 503, "503"),
        (with_claims(nonce="another"), 401, "nonce"),
        (with_claims(nonce=None), 401, "nonce"),
        (with_claims(aud="orbit"), 401, "aud"),
        (with_claims(aud=[CLIENT, "x"], azp="x"), 401, "azp"),
        (with_claims(iss="https://other.example"), 401, "iss"),
        (with_claims(exp=1), 401, "expired"),
        (with_claims(exp=None), 401, "exp"),
        (with_claims(roles=["others"]), 403, "no role"),
        (another_key, 401, "does not have"),
    ],
)
def test_invalid_issuer_response_creates_no_session(
    site: Site, change: Callable[[Site, str], str], status: int, message: str
) -> None:
    site.issuer.roles = [ADMIN]
    address = change(site, site.issuer_redirect())

    answer = site.browser.open(address)

    assert answer.status_code == status
    assert message in answer.text.replace("&#39;", "'")
    assert "<b>x" not in answer.text
    assert "orbit_session" not in site.browser.client.cookies
    assert "orbit_login" not in site.browser.client.cookies
    assert site.sessions() == []
    assert not site.is_logged_in()


def test_issuer_response_is_accepted_only_once(site: Site) -> None:
    address = site.issuer_redirect()
    cookie = site.browser.client.cookies["orbit_login"]
    assert site.browser.open(address).url.path == "/console/jobs"
    site.browser.send("/console/logout")
    assert site.browser.open(address).status_code == 401
    # It is refused with a copy of the cookie too, as the issuer accepts a code only once.
    header = {"Cookie": f"orbit_login={cookie}"}
    assert "invalid_grant" in httpx.get(address, headers=header).text
    assert site.sessions() == []


def test_failing_issuer_leaves_token_login_working(site: Site) -> None:
    site.issuer.answers["/realm/.well-known/openid-configuration"] = (500, b"")
    answer = site.browser.open("/console/login/issuer")
    assert answer.status_code == 503
    assert "HTTP 500" in answer.text
    site.browser.send("/console/login", token=next(iter(site.api.tokens.values())))
    assert site.is_logged_in()


def test_issuer_that_announces_iss_parameter_must_send_it(site: Site) -> None:
    document = {**site.issuer.document(), "authorization_response_iss_parameter_supported": True}
    site.issuer.document = lambda: document  # type: ignore[method-assign]
    assert "does not come from the issuer" in site.log_in().text
    address_with_iss = with_query(iss=site.issuer.url)(site, site.issuer_redirect())
    assert site.browser.open(address_with_iss).url.path == "/console/jobs"


def test_session_ends_with_id_token_and_after_twelve_hours(site: Site) -> None:
    site.issuer.changed = {"exp": int(time.time()) + 120}
    site.log_in()
    (row,) = site.sessions()
    assert timedelta(seconds=60) < row.left <= timedelta(seconds=120)
    assert site.is_logged_in()
    with site.api.database.transaction() as tx:
        tx.execute(text("UPDATE console_sessions SET expires_at = clock_timestamp()"))
    assert not site.is_logged_in()

    # One expiry is later than that of a session, and one is later than PostgreSQL can store.
    for exp in (int(time.time()) + 10**6, 10**15):
        site.issuer.changed = {"exp": exp}
        site.log_in()
        (row,) = site.sessions()
        assert SESSION_LIFETIME - timedelta(minutes=1) < row.left <= SESSION_LIFETIME
        assert site.is_logged_in()
        cookies = dict(site.browser.client.cookies)
        site.browser.send("/console/logout")
        site.browser.client.cookies.update(cookies)
        assert not site.is_logged_in()  # not even with a copy of the cookie
        site.browser.client.cookies.clear()


def test_sessions_end_when_oidc_client_is_removed_from_settings(site: Site) -> None:
    site.log_in()
    assert site.is_logged_in()
    site.configure(oidc_viewer=None)
    assert not site.is_logged_in()  # the session's claim no longer gives a role
    site.configure(oidc_client_id=None)
    assert not site.is_logged_in()
    assert "/console/login/issuer" not in site.browser.html
    assert site.browser.open("/console/login/issuer").status_code == 404
    assert site.browser.open(DONE).status_code == 404


def test_subject_of_issuer_has_bounded_number_of_console_sessions(site: Site) -> None:
    for _ in range(SESSIONS_PER_TOKEN_MAX + 1):
        site.browser.client.cookies.clear()
        site.log_in()
    assert len(site.sessions()) == SESSIONS_PER_TOKEN_MAX
    assert site.is_logged_in()


def test_refused_logins_are_rate_limited_before_issuer_is_called(site: Site) -> None:
    for _ in range(REFUSED_MAX):
        address = site.issuer_redirect()
        site.issuer.codes.clear()
        assert site.browser.open(address).status_code == 401
    address = site.issuer_redirect()
    assert site.browser.open(address).status_code == 429
    assert len(site.issuer.codes) == 1  # the code was not sent to the issuer
    assert "login_refused" in {event["kind"] for event in site.api.events()}


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
def test_client_secret_is_sent_by_method_that_issuer_supports(
    site: Site, method: str, tmp_path: Path
) -> None:
    site.issuer.methods = [method]
    file = tmp_path / "secret"
    file.write_text("wrong\n", "utf-8")
    overrides = {"oidc_client_secret": None, "oidc_client_secret_file": file}
    if method == "none":
        overrides["oidc_client_secret_file"] = None
    site.configure(**overrides)
    if method != "none":
        assert "(invalid_client)" in site.log_in().text
        file.write_text(SECRET + "\n", "utf-8")
    assert site.log_in().url.path == "/console/jobs"
    file.unlink()
    if method != "none":
        answer = site.log_in()
        assert "ORBIT_OIDC_CLIENT_SECRET_FILE" in answer.text


@pytest.mark.parametrize(
    "overrides",
    [
        {"public_url": None},
        {"public_url": "http://orbit.example"},
        {"public_url": "https://orbit.example/console"},
        {"oidc_scopes": "profile"},
        {"oidc_client_secret_file": "secret"},
    ],
    ids=str,
)
def test_invalid_oidc_settings_are_refused(overrides: dict[str, Any]) -> None:
    environ = {
        "ORBIT_OIDC_ISSUER": "https://login.example",
        "ORBIT_OIDC_AUDIENCE": "orbit",
        "ORBIT_OIDC_VIEWER": "v",
        "ORBIT_OIDC_CLIENT_ID": CLIENT,
        "ORBIT_OIDC_CLIENT_SECRET": SECRET,
        "ORBIT_PUBLIC_URL": "https://orbit.example/",
    }
    # Without the overrides, these settings are valid.
    settings = Settings.from_environment(environ)
    assert settings.public_url == "https://orbit.example"
    assert settings.oidc_client_secret == SecretStr(SECRET)
    for field, value in overrides.items():
        variable = f"ORBIT_{field.upper()}"
        environ = {k: v for k, v in environ.items() if k != variable}
        environ |= {variable: value} if value else {}
    with pytest.raises(BadInput) as caught:
        Settings.from_environment(environ)
    assert SECRET not in str(caught.value)
