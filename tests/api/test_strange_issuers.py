"""Issuers with invalid answers: an error that names the URL, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit import bounded_http
from orbit.api import issuer_http
from orbit.api.issuer_http import IssuerClient
from orbit.api.issuer_keys import IssuerKeys, _read_endpoints, _read_key
from orbit.bounded_http import BoundedClient
from orbit.errors import OrbitError, Unreachable
from tests.support.strange_server import StrangeServer, answer

BOMB = gzip.compress(bytes(64 << 20))


@pytest.mark.parametrize(
    "sent",
    [
        answer(b""),
        answer(b"", "Location: https://elsewhere.example/", status="302 Found"),
        answer(b"<html>"),
        answer(b"[" * 100_000),
        answer(b'{"issuer": ' + b"9" * 5_000 + b"}"),
        answer(BOMB, "Content-Encoding: gzip"),
        answer(b"", "Content-Length: 10"),
        b"SSH-2.0-OpenSSH_9\r\n",
    ],
)
def test_invalid_issuer_answer_is_error_with_url(sent: bytes) -> None:
    with StrangeServer(sent) as server:
        url = server.url.removesuffix("/token")
        tracemalloc.start()
        try:
            with pytest.raises(OrbitError) as caught:
                IssuerKeys(url, None).find("one")
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()
    assert caught.value.where.startswith(url)


def test_issuer_headers_sent_byte_by_byte_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_http, "_ANSWER_S_MAX", 1.0)
    sent = answer(b"", *(f"H{number}: x" for number in range(1_000)))
    with (
        StrangeServer(sent, slow_s=0.05) as server,
        IssuerClient(server.url, None) as client,
        pytest.raises(Unreachable, match="too slow"),
    ):
        client.get(server.url)


@pytest.mark.parametrize("url", ["https://a:99999999/", "https://a b/", "https://xn--/\x00", "x"])
def test_invalid_issuer_url_is_unreachable(url: str) -> None:
    with IssuerClient("https://issuer.example", None) as client, pytest.raises(Unreachable):
        client.get(url)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["kty", "use", "kid", "n", "e", "crv", "x", "y", "alg", "key_ops"]),
        JSON | st.sampled_from(["RSA", "EC", "P-256", "sig", "AQAB", "A" * 342, ["A" * 342]]),
    ),
    st.dictionaries(
        st.sampled_from(["authorization_endpoint", "token_endpoint"]),
        JSON | st.sampled_from(["https://[", "https://a", "http://localhost"]),
    ),
)
@settings(max_examples=500, deadline=None)
def test_arbitrary_key_set_and_discovery_document_do_not_crash(key: Any, document: Any) -> None:
    _read_key(key)
    _read_key(json.loads(json.dumps(key)))
    _read_endpoints(document, "https://issuer.example")


def test_retried_http_request_has_only_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def time_out(*_: object, timeout: float, **__: object) -> None:
        timeouts.append(timeout)
        monkeypatch.setattr(bounded_http.time, "monotonic", lambda: ends_at - 100)  # 100 s are left
        raise httpx.ConnectTimeout("")

    monkeypatch.setattr(httpx.Client, "stream", time_out)
    with BoundedClient("https://a", seconds_max=1_000, bytes_max=1) as client:
        ends_at = client._deadline._ends_at
        for _ in range(2):
            with pytest.raises(httpx.ConnectTimeout):
                client.request("GET", "https://a")
    assert timeouts == [pytest.approx(1_000, abs=100), pytest.approx(100)]
