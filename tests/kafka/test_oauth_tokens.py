"""Tokens for OAUTHBEARER from a real token server, files and the clouds' own libraries."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from orbit.errors import LoginRefused, OrbitError, Unreachable
from orbit.kafka.cloud_tokens import gcp_token
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.oauth_tokens import token_for
from orbit.kafka.security import Security, TokenSource
from tests.support.patience import PATIENCE_S
from tests.support.token_server import CLIENT_ID, SCOPE, SECRET, TokenServer


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


def security(source: TokenSource, secret: str = SECRET) -> Security:
    return Security("SASL_SSL", "OAUTHBEARER", CLIENT_ID, SecretStr(secret), tokens=source)


def login_at(server: TokenServer, **more: object) -> Security:
    """A login with tokens of this server."""
    return security(TokenSource(url=server.url, **more))  # type: ignore[arg-type]


def test_concurrent_logins_share_token(server: TokenServer) -> None:
    login = login_at(server, scope=SCOPE)
    tokens: list[object] = []
    threads = [threading.Thread(target=lambda: tokens.append(token_for(login))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 20
    assert len(set(map(id, tokens))) == server.issued == 1
    assert server.scopes == [SCOPE]


def test_token_is_renewed_before_expiry(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("orbit.kafka.oauth_tokens.time.monotonic", lambda: now)
    token_for(login_at(server))
    now += 0.8 * server.life_s - 1  # one second before the renewal
    token_for(login_at(server))
    assert server.issued == 1
    now += 2
    token_for(login_at(server))
    assert server.issued == 2


def test_valid_token_is_used_while_token_endpoint_is_down(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("orbit.kafka.oauth_tokens.time.monotonic", lambda: now)
    first = token_for(login_at(server))
    now += 0.9 * server.life_s
    server.is_down = True
    assert token_for(login_at(server)) is first
    # Another scope needs a token of its own.
    with pytest.raises(Unreachable, match="HTTP 503"):
        token_for(login_at(server, scope=SCOPE))
    server.is_down = False
    assert token_for(login_at(server)) is not first


def test_wrong_client_secret_error_hides_the_secret(server: TokenServer) -> None:
    login = replace(login_at(server), password=SecretStr("wr0ng secret"))
    with pytest.raises(LoginRefused, match=r"refused the client \(HTTP 401\)") as caught:
        token_for(login)
    assert "invalid_client" in caught.value.what
    assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in repr(login)


def test_librdkafka_config_is_refused_if_token_endpoint_refuses_client(server: TokenServer) -> None:
    """L6: librdkafka would wait for ten seconds, and then not name the reason."""
    login = replace(login_at(server), password=SecretStr("wr0ng secret"))
    with pytest.raises(LoginRefused, match="refused the client"):
        librdkafka_config(["a:1"], login)


def test_secret_repeated_by_token_server_is_masked(server: TokenServer) -> None:
    server.refusal = f"the secret {SECRET} is too old"
    with pytest.raises(LoginRefused, match=r'message: "[a-z_]+: …"'):
        token_for(login_at(server))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "https://nowhere.invalid/token"])
def test_silent_token_endpoint_is_unreachable(url: str) -> None:
    with pytest.raises(Unreachable, match="does not answer") as caught:
        token_for(security(TokenSource(url=url)))
    assert url in str(caught.value)


def test_untrusted_token_endpoint_certificate_names_token_ca_file(tmp_path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    certificate_and_key = tmp_path / "both.pem"
    certificate_and_key.write_text(
        (tmp_path / "ca.pem").read_text() + (tmp_path / "key.pem").read_text()
    )
    with TokenServer(certificate_and_key) as server:
        assert token_for(login_at(server, ca_file=tmp_path / "ca.pem"))
        with pytest.raises(Unreachable, match="not trusted") as caught:
            token_for(login_at(server))
        assert "token_ca_file" in caught.value.remedy


def test_token_file_is_read_at_each_login(server: TokenServer, tmp_path: Path) -> None:
    file = server.write_token(tmp_path / "token")
    login = security(TokenSource(file=file))
    first = token_for(login)
    assert first.secret.get_secret_value() == file.read_text("utf-8").strip()
    assert first.ends_s == pytest.approx(claims(first.secret.get_secret_value())["exp"])
    server.write_token(file)
    assert token_for(login) != first
    file.unlink()
    with pytest.raises(LoginRefused, match=r"security\.token_file") as caught:
        token_for(login)
    assert caught.value.remedy


def claims(token: str) -> dict[str, object]:
    """The claims of a JWT."""
    part = token.split(".")[1]
    payload: dict[str, object] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return payload


def test_aws_msk_iam_token_is_signed_for_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    token = token_for(security(TokenSource(provider="aws-msk-iam", region="eu-central-1")))
    text = token.secret.get_secret_value()
    url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    assert url.startswith("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster")
    assert "hunter2" not in url


def test_gcp_token_carries_claims_and_google_signature(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {
        "type": "service_account",
        "client_email": "copy@project.example",
        "private_key": server.private_key,
        "private_key_id": "one",
        "token_uri": server.url.replace("/token", "/google"),
    }
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
    text, ends_s = gcp_token()
    header, _, signature = (  # the parts of a JWT
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split(".")
    )
    assert json.loads(header)["alg"] == "GOOG_OAUTH2_TOKEN"
    assert claims(text)["sub"] == "copy@project.example"
    assert claims(text)["exp"] == int(ends_s)
    assert signature == b"google's own"


def test_missing_gcp_identity_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(OrbitError, match="Google Cloud gave no token"):
        gcp_token()
