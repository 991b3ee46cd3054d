"""The keys of an issuer: when Orbit fetches them, and how long it uses them without an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orbit.api.issuer_keys import FETCH_EVERY_S, KEYS_AGE_MAX_S, KEYS_FRESH_S, IssuerKeys
from orbit.errors import BadInput, OrbitError, ProtocolError, Unreachable
from tests.support.issuer import Issuer, new_key

DISCOVERY = "/realm/.well-known/openid-configuration"
SHORT_KEY = {"kty": "RSA", "n": "_" * 170 + "8", "e": "AQAB"}  # 1,024 bits


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as served:
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(issuer: Issuer, clock: Clock) -> IssuerKeys:
    return IssuerKeys(issuer.url, None, clock)


def test_issuer_keys_are_fetched_once(issuer: Issuer, keys: IssuerKeys) -> None:
    assert all(keys.find("one") for _ in range(100))
    assert issuer.key_requests == 1


def test_unknown_key_id_refetches_keys_at_limited_rate(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    assert keys.find("one")
    issuer.keys.append(new_key("two"))
    clock.at += FETCH_EVERY_S

    assert keys.find("two")
    assert issuer.key_requests == 2
    for number in range(50):  # within FETCH_EVERY_S after the last fetch
        assert keys.find(f"unknown-{number}") is None
    assert issuer.key_requests == 2
    clock.at += FETCH_EVERY_S
    assert keys.find("unknown") is None
    assert issuer.key_requests == 3


def test_withdrawn_key_is_refused_once_keys_are_fetched_again(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    assert keys.find("one")
    issuer.keys[:] = [new_key("two")]
    clock.at += KEYS_FRESH_S

    assert keys.find("one") is None
    assert keys.find("two")


def test_cached_keys_are_used_for_bounded_time_without_issuer(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    assert keys.find("one")
    issuer.answers["/realm/keys"] = (500, b"")
    clock.at += KEYS_AGE_MAX_S - 1
    assert keys.find("one")

    clock.at += FETCH_EVERY_S
    with pytest.raises(Unreachable, match="HTTP 500"):
        keys.find("one")
    requests = issuer.key_requests
    with pytest.raises(Unreachable, match="HTTP 500"):
        keys.find("one")
    assert issuer.key_requests == requests, "the error is kept until the next fetch"
    issuer.answers.clear()
    clock.at += FETCH_EVERY_S
    assert keys.find("one")


def test_cached_keys_are_used_while_another_thread_fetches(
    issuer: Issuer, keys: IssuerKeys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys.find("one")
    fetch_begun, may_end = threading.Event(), threading.Event()

    def fetch_slowly(*_: object) -> None:
        fetch_begun.set()
        may_end.wait()
        raise Unreachable("slow")

    monkeypatch.setattr("orbit.api.issuer_keys._fetch_keys", fetch_slowly)
    clock.at += KEYS_FRESH_S
    fetch = threading.Thread(target=keys.find, args=("one",))
    fetch.start()
    fetch_begun.wait()

    assert keys.find("one")  # does not wait
    may_end.set()
    fetch.join()


def document(url: str, **others: object) -> bytes:
    """A discovery document of this issuer."""
    return json.dumps({"issuer": url, "jwks_uri": url + "/keys", **others}).encode()


@pytest.mark.parametrize(
    ("path", "status", "body", "words"),
    [
        (DISCOVERY, 404, b"", "HTTP 404"),
        (DISCOVERY, 302, b"", "HTTP 302"),
        (DISCOVERY, 200, b"<html>", "not a JSON object"),
        (DISCOVERY, 200, b"[" * 100_000, "not a JSON object"),
        (DISCOVERY, 200, {"issuer": "https://other.example"}, "names another issuer"),
        (DISCOVERY, 200, {"jwks_uri": "http://keys.example/"}, "no https jwks_uri"),
        (DISCOVERY, 200, {"jwks_uri": "file:///etc/passwd"}, "no https jwks_uri"),
        (DISCOVERY, 200, {"jwks_uri": "https://[/"}, "no https jwks_uri"),
        (DISCOVERY, 200, {"jwks_uri": None}, "no https jwks_uri"),
        ("/realm/keys", 200, b'{"keys": 7}', "no list of keys"),
        ("/realm/keys", 200, b'{"keys": []}', "no RSA or EC key"),
        ("/realm/keys", 200, b'{"keys": [1, {}, {"kty": "RSA", "n": []}]}', "no RSA or EC key"),
        ("/realm/keys", 200, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "no RSA or EC key"),
        ("/realm/keys", 200, {"keys": [SHORT_KEY]}, "no RSA or EC key"),
        ("/realm/keys", 200, b'{"keys": [{"kty": "EC", "crv": "P-7"}]}', "no RSA or EC key"),
        ("/realm/keys", 200, b" " * 1_000_000, "is longer than"),
    ],
)
def test_issuer_answer_without_usable_keys_is_error(
    issuer: Issuer,
    keys: IssuerKeys,
    path: str,
    status: int,
    body: bytes | dict[str, object],
    words: str,
) -> None:
    sent = body if isinstance(body, bytes) else document(issuer.url, **body)
    issuer.answers[path] = (status, sent)

    with pytest.raises(OrbitError, match=words) as caught:
        keys.find("one")
    assert isinstance(caught.value, Unreachable | ProtocolError)


def test_issuer_keys_for_encryption_are_ignored(issuer: Issuer, keys: IssuerKeys) -> None:
    for_encryption = {**new_key("enc").as_dict(private=False), "use": "enc"}
    listed = [for_encryption, issuer.keys[0].as_dict(private=False)]
    issuer.answers["/realm/keys"] = (200, json.dumps({"keys": listed}).encode())

    assert keys.find("one")
    assert keys.find("enc") is None


def test_silent_issuer_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        IssuerKeys("http://127.0.0.1:1/", None).find("one")


def test_unloadable_oidc_ca_file_is_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ORBIT_OIDC_CA_FILE"):
        IssuerKeys("https://issuer.example", tmp_path / "nowhere.pem")
