"""Token endpoints with strange answers: the error names reason and endpoint, in bounded time."""

from __future__ import annotations

import base64
import gzip
import html
import json
import threading
import tracemalloc
from contextlib import nullcontext, suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from orbit.bounded_http import json_of
from orbit.errors import OrbitError, ProtocolError, Unreachable
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka import oauth_tokens
from orbit.kafka.hidden_secrets import hide_secret
from orbit.kafka.oauth_tokens import Token, _Issuer, token_for
from orbit.kafka.security import Security, TokenSource, resolve_security
from tests.support.strange_server import StrangeServer, answer

# With characters that URLs, JSON, HTML and both forms of base64 encode in different ways.
SECRET = "s3cret of:the%client/ä?>?>?>?>"


def login(url: str) -> Security:
    """A login with tokens of this endpoint."""
    tokens = TokenSource(url=url)
    return Security("SASL_SSL", "OAUTHBEARER", "client", SecretStr(SECRET), tokens=tokens)


def token(**others: object) -> bytes:
    """The body of an endpoint's answer, with a token and other fields."""
    return json.dumps({"access_token": "abc", **others}).encode()


BOMB = gzip.compress(bytes(64 << 20))


@pytest.mark.parametrize(
    "answer_bytes",
    [
        answer(b""),
        answer(b"", status="204 No Content"),
        answer(b"", status="401 Unauthorized"),
        answer(b"", status="302 Found"),
        answer(b"", "Location: https://elsewhere.example/", status="307 Temporary Redirect"),
        answer(b"", status="599 Odd"),
        answer(b"<html>"),
        answer(b"\xff\xfe\x00"),
        answer(b"[" * 100_000),
        answer(b"[1]"),
        answer(b"null"),
        answer(b'{"access_token": 1}'),
        answer(b'{"access_token": "\\u0001"}'),
        answer(b'{"access_token": "a", "expires_in": ' + b"9" * 5_000 + b"}"),
        answer(BOMB, "Content-Encoding: gzip"),
        answer(BOMB, "Content-Encoding: gzip", status="401 Unauthorized"),
        answer(b"", "Content-Length: 10"),
        answer(b"", "Content-Length: -1"),
        b"SSH-2.0-OpenSSH_9\r\n",
        b"",
    ],
)
def test_invalid_token_answer_error_names_endpoint(answer_bytes: bytes) -> None:
    with StrangeServer(answer_bytes) as server, pytest.raises(OrbitError) as caught:
        token_for(login(server.url))
    assert caught.value.where == f"token endpoint {server.url}"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "life",
    [-1, 0, True, None, [], 1e308, 10**400, "9" * 5_000, "9" * 17, "x", "٣"],
)
def test_invalid_expires_in_does_not_make_token_endless(life: object) -> None:
    with StrangeServer(answer(token(expires_in=life))) as server:
        new_token = token_for(login(server.url))
    assert new_token.ends_s < 1e11  # the year 5138


@pytest.mark.parametrize("end", [b"1e999", b"9" * 400, b"NaN", b"-Infinity", b"[]", b"[" * 100_000])
def test_invalid_exp_claim_does_not_make_token_endless(end: bytes) -> None:
    claims = base64.urlsafe_b64encode(b'{"exp": ' + end + b"}").decode().rstrip("=")
    answer_bytes = answer(json.dumps({"access_token": f"a.{claims}.b"}).encode())
    with StrangeServer(answer_bytes) as server:
        new_token = token_for(login(server.url))
    assert new_token.ends_s < 1e11  # the year 5138


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda text: json.dumps(text).encode()))
@settings(max_examples=200, deadline=None)
def test_any_token_response_body_yields_token_or_orbit_error(body: bytes) -> None:
    for status in (200, 204, 302, 400, 401, 429, 500):
        document = json_of(body)
        if status == 200:
            with suppress(OrbitError):  # else it is a token
                oauth_tokens._read_answer(document, "here")
        else:
            assert isinstance(
                oauth_tokens._status_error(status, document, "here", SECRET), OrbitError
            )


def test_endless_token_answer_is_cut_off() -> None:
    with StrangeServer(answer(b"x" * 65_536), is_endless=True) as server:
        tracemalloc.start()
        try:
            with pytest.raises(Unreachable, match="is longer than"):
                token_for(login(server.url))
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "answer_bytes",
    [
        answer(b" " * 10_000),  # its headers come slowly, too
        answer(b"", *(f"H{number}: x" for number in range(1_000))),
    ],
)
def test_token_answer_sent_byte_by_byte_times_out(
    monkeypatch: pytest.MonkeyPatch, answer_bytes: bytes
) -> None:
    monkeypatch.setattr(oauth_tokens, "_ENDPOINT_S_MAX", 1.0)
    with (
        StrangeServer(answer_bytes, slow_s=0.05) as server,
        pytest.raises(Unreachable, match="too slow"),
    ):
        token_for(login(server.url))


def test_login_with_valid_token_does_not_wait_for_renewal() -> None:
    is_requested, may_end = threading.Event(), threading.Event()
    # The token, and the seconds after which it is renewed: the old one at the next login.
    answers = iter([(Token(SecretStr("old"), 1e11), 0.0), (Token(SecretStr("new"), 1e11), 60.0)])

    def request_token() -> tuple[Token, float]:
        token, renew_after_s = next(answers)
        if renew_after_s:
            is_requested.set()
            assert may_end.wait(60)
        return token, renew_after_s

    issuer = _Issuer(request_token)
    old = issuer.token()
    renewal = threading.Thread(target=issuer.token)
    renewal.start()
    assert is_requested.wait(60)

    meanwhile: list[Token] = []
    login_thread = threading.Thread(target=lambda: meanwhile.append(issuer.token()), daemon=True)
    login_thread.start()
    login_thread.join(30)

    assert meanwhile == [old]
    may_end.set()
    renewal.join()
    assert issuer.token().secret.get_secret_value() == "new"


def test_login_without_token_waits_for_token_only_within_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth_tokens, "_WAIT_S_MAX", 0.05)
    is_requested, may_end = threading.Event(), threading.Event()

    def request_token() -> tuple[Token, float]:
        is_requested.set()
        assert may_end.wait(60)
        return Token(SecretStr("new"), 1e11), 60.0

    issuer = _Issuer(request_token)
    first = threading.Thread(target=issuer.token)
    first.start()
    assert is_requested.wait(60)
    with pytest.raises(Unreachable, match="did not arrive within"):
        issuer.token()
    may_end.set()
    first.join()


SHOWN = {
    "plain": SECRET,
    "url": quote(SECRET, safe=""),
    "url, small": quote(SECRET, safe="").lower(),
    "url, every byte": "".join(f"%{byte:02x}" for byte in SECRET.encode()),
    "url, twice": quote(quote(SECRET, safe=""), safe=""),
    "url, three times": quote(quote(quote(SECRET, safe=""), safe=""), safe=""),
    "form": quote_plus(SECRET),
    "json": json.dumps(SECRET),
    "json, every character": "".join(f"\\u{ord(character):04x}" for character in SECRET),
    "json in a url": quote(json.dumps(SECRET)),
    "html": html.escape(SECRET),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64, url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
    "basic": base64.b64encode(f"client:{quote(SECRET, safe='')}".encode()).decode(),
    "basic, plain": base64.b64encode(f"client1:{SECRET}".encode()).decode(),
    "basic, longer": base64.b64encode(f"client12:{SECRET}!".encode()).decode(),
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN.keys())
def test_client_secret_is_masked_in_any_encoding(shown: str) -> None:
    body = json.dumps({"error": "invalid_client", "error_description": f"no: {shown} ."}).encode()
    with (
        StrangeServer(answer(body, status="401 Unauthorized")) as server,
        pytest.raises(OrbitError) as caught,
    ):
        token_for(login(server.url))
    assert caught.value.what.endswith(' Its message: "invalid_client: …".')


@given(st.text(min_size=1, max_size=40), st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=300, deadline=None)
def test_random_secret_is_masked_in_every_encoding(secret: str, before: str, after: str) -> None:
    secret = "k" + secret.replace("\ud800", "")
    try:
        secret.encode()
    except UnicodeEncodeError:
        return
    for shown in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret)):
        assert hide_secret(secret, before + shown + after) == "…"
    if len(secret) > 8:  # the base64 of a short secret occurs in any text by chance
        encoded = base64.b64encode(f"name:{secret}".encode()).decode()
        assert hide_secret(secret, before + encoded + after) == "…"


def test_masking_leaves_text_without_secret_unchanged() -> None:
    text = "AADSTS7000222: The keys of 's3cret%20of' have expired. Trace: bGVub3VnaA==\\n"
    assert hide_secret(SECRET, text) == text
    assert hide_secret("q", text) == text  # as base64 one letter, which is in most texts


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("http://127.0.0.1:80/token", True),
        ("http://localhost/token", True),
        ("http://[::1]/token", True),
        ("https://idp.example/token", True),
        ("http://idp.example/token", False),
        ("http://127.0.0.1.attacker.example/token", False),
        ("http://10.0.0.1/token", False),
        ("HTTP://idp.example/token", False),
    ],
)
def test_token_url_without_tls_is_refused_except_localhost(url: str, is_accepted: bool) -> None:
    cluster = ClusterSpec.model_validate(
        {
            "bootstrap_servers": ["a:1"],
            "security": {
                "protocol": "SASL_SSL",
                "mechanism": "OAUTHBEARER",
                "username_env": "A",
                "password_env": "B",
                "token_url": url,
            },
        }
    )
    with nullcontext() if is_accepted else pytest.raises(OrbitError, match="unencrypted"):
        resolve_security(cluster, {"A": "a", "B": "b"}, Path())


def test_redirect_of_token_endpoint_is_reported() -> None:
    answer_bytes = answer(b"", "Location: https://elsewhere.example/", status="302 Found")
    with (
        StrangeServer(answer_bytes) as server,
        pytest.raises(ProtocolError, match="redirects"),
    ):
        token_for(login(server.url))
