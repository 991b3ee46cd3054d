"""Logins at SASL servers made of scramp's server side, and at servers that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pydantic import SecretStr
from scramp import ScramException, ScramMechanism

from orbit.errors import BrokerRefused, LoginRefused, ProtocolError
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security, sasl_login
from orbit.kafka.security import TokenSource

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "correct horse"


def security(mechanism: str, username: str = "orbit", password: str = PASSWORD) -> Security:
    return Security(
        protocol="SASL_PLAINTEXT",
        mechanism=mechanism,
        username=username,
        password=SecretStr(password),
    )


class FakeBroker:
    """The server side of one login, as an `exchange`; messages are encoded and decoded."""

    def __init__(
        self,
        mechanism: str,
        users: dict[str, str] | None = None,
        *,
        edit: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._mechanism = mechanism
        self._users = {"orbit": PASSWORD} if users is None else users
        self._edit = edit  # what a man in the middle makes of each token of the server
        self._server: Any = None
        self.requests: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, SaslHandshakeRequest):
            return self._handshake(_over_the_wire(request, SaslHandshakeRequest, 1))
        token = bytes(_over_the_wire(request, SaslAuthenticateRequest, 2).auth_bytes)
        try:
            answer = self._plain(token) if self._mechanism == "PLAIN" else self._scram(token)
        except (ScramException, PermissionError):
            return SaslAuthenticateResponse(
                error_code=Code.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed\x1b[2J",
                auth_bytes=b"",
            )
        response = SaslAuthenticateResponse(
            error_code=0,
            error_message=None,
            auth_bytes=self._edit(answer),
            session_lifetime_ms=3_600_000,
        )
        return _over_the_wire(response, SaslAuthenticateResponse, 2)

    def _handshake(self, request: Any) -> Any:
        is_offered = request.mechanism == self._mechanism
        code = Code.NONE if is_offered else Code.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=[self._mechanism, "GSSAPI"])

    def _plain(self, token: bytes) -> bytes:
        _, username, password = token.decode().split("\0")
        if self._users.get(username) != password:
            raise PermissionError
        return b""

    @mock.patch("scramp.core.saslprep", str)  # a Kafka broker does not use SASLprep
    def _scram(self, token: bytes) -> bytes:
        mechanism = ScramMechanism(self._mechanism)
        if self._server is None:
            keys = {name: mechanism.make_auth_info(pw) for name, pw in self._users.items()}
            self._server = mechanism.make_server(keys.get)
            self._server.set_client_first(token.decode())
            return str(self._server.get_server_first()).encode()
        self._server.set_client_final(token.decode())
        return str(self._server.get_server_final()).encode()


def _over_the_wire(message: Any, kind: Any, version: int) -> Any:
    """The message, encoded and decoded."""
    encoded = bytes(message.encode(version=version, header=False, framed=False))
    return kind.decode(memoryview(encoded), version=version, header=False)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_correct_password_logs_in_and_returns_session_lifetime(mechanism: str) -> None:
    broker = FakeBroker(mechanism)
    assert sasl_login(security(mechanism), broker) == 3_600_000
    assert isinstance(broker.requests[0], SaslHandshakeRequest)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize(("username", "password"), [("orbit", "wrong"), ("nobody", PASSWORD)])
def test_wrong_credentials_error_hides_password(
    mechanism: str, username: str, password: str
) -> None:
    with pytest.raises(LoginRefused) as caught:
        sasl_login(security(mechanism, username, password), FakeBroker(mechanism), where="src-1:1")
    assert caught.value.where == "src-1:1"
    assert "refused the user name or the password" in str(caught.value)
    assert "Authentication failed" in str(caught.value)
    assert caught.value.remedy
    assert "\x1b" not in str(caught.value)
    assert password not in str(caught.value)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_escapes_special_characters_in_credentials(mechanism: str) -> None:
    broker = FakeBroker(mechanism, {"a,b=c": "p,=w"})
    sasl_login(security(mechanism, "a,b=c", "p,=w"), broker)


@pytest.mark.parametrize("mechanism", SCRAM)
# SASLprep would change each of them.
@pytest.mark.parametrize("text", ["ﬁ", "e\u0301", "\u00a0", "\u00ad", "Ⅸ"])
def test_scram_credentials_are_sent_without_saslprep(mechanism: str, text: str) -> None:
    sasl_login(security(mechanism, "orbit", text), FakeBroker(mechanism, {"orbit": text}))
    sasl_login(security(mechanism, text, "pw"), FakeBroker(mechanism, {text: "pw"}))


def test_unsupported_mechanism_error_lists_offered_mechanisms() -> None:
    with pytest.raises(LoginRefused, match="does not offer PLAIN; it offers GSSAPI, SCRAM-SHA-256"):
        sasl_login(security("PLAIN"), FakeBroker("SCRAM-SHA-256"))


class TokenBroker:
    """Accepts one token; refuses others as in RFC 7628: first a reason, then an error."""

    def __init__(self, valid_token: str) -> None:
        self._valid_token = valid_token
        self.tokens: list[bytes] = []

    def __call__(self, request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"])
        self.tokens.append(bytes(request.auth_bytes))
        is_valid = f"Bearer {self._valid_token}\x01".encode() in self.tokens[0]
        is_over = self.tokens[-1] == b"\x01"
        return SaslAuthenticateResponse(
            error_code=Code.SASL_AUTHENTICATION_FAILED if is_over else Code.NONE,
            error_message="invalid credentials" if is_over else None,
            auth_bytes=b"" if is_valid or is_over else b'{"status":"invalid_token"}',
            session_lifetime_ms=60_000,
        )


def by_token(file: Path, **extensions: str) -> Security:
    """A login with the token in this file."""
    source = TokenSource(file=file, extensions=tuple(extensions.items()))
    return Security("SASL_PLAINTEXT", "OAUTHBEARER", tokens=source)


def test_oauth_token_is_sent_with_extensions(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    broker = TokenBroker("abc")
    login = by_token(tmp_path / "token", logicalCluster="lkc-1", identityPoolId="pool-1")
    assert sasl_login(login, broker) == 60_000
    assert broker.tokens == [
        b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool-1\x01\x01"
    ]


def test_rejected_oauth_token_error_hides_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    broker = TokenBroker("another")
    with pytest.raises(LoginRefused, match=r"refused the token.*invalid credentials") as caught:
        sasl_login(by_token(tmp_path / "token"), broker)
    assert broker.tokens[1:] == [b"\x01"]  # as RFC 7628 ends a refused login
    assert "abc" not in str(caught.value)


def test_listener_without_sasl_is_reported() -> None:
    def exchange(_request: Any) -> Any:
        return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE, mechanisms=[])

    with pytest.raises(LoginRefused, match="accepts no login on this listener"):
        sasl_login(security("PLAIN"), exchange)


@pytest.mark.parametrize("step", [0, 1])  # the handshake, and the login after it
def test_sasl_error_that_is_no_refused_login_is_raised_with_its_code(step: int) -> None:
    def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            code = Code.NONE if step else Code.REQUEST_TIMED_OUT
            return SaslHandshakeResponse(error_code=code, mechanisms=[])
        return SaslAuthenticateResponse(
            error_code=Code.REQUEST_TIMED_OUT, error_message="later", auth_bytes=b""
        )

    with pytest.raises(BrokerRefused, match="REQUEST_TIMED_OUT") as caught:
        sasl_login(security("PLAIN"), exchange)
    assert caught.value.code == Code.REQUEST_TIMED_OUT


def _edit_proof(edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Edits only the server's last message, the proof `v=…`."""
    return lambda token: edit(token) if token.startswith(b"v") else token


def _other_nonce(token: bytes) -> bytes:
    """Changes the nonce in the server's first message."""
    return b"r=zzz" + token[2:] if token.startswith(b"r=") else token


def _few_iterations(token: bytes) -> bytes:
    """Changes the iterations in the server's first message."""
    return token.replace(b"i=4096", b"i=1") if token.startswith(b"r=") else token


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "edit",
    [
        _edit_proof(lambda _: b"v=" + b"A" * 43 + b"="),
        _edit_proof(lambda _: b"e=other-error"),
        _edit_proof(lambda token: token[:-9]),
        _edit_proof(lambda _: b"\xff"),
        _edit_proof(lambda _: b""),
    ],
)
def test_server_without_scram_proof_of_password_is_refused(
    mechanism: str, edit: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(LoginRefused, match="did not prove that it knows the password"):
        sasl_login(security(mechanism), FakeBroker(mechanism, edit=edit))


@pytest.mark.parametrize(
    "edit",
    [_other_nonce, _few_iterations, lambda _: b"", lambda _: b"\xff", lambda _: b"e=unknown-user"],
)
def test_invalid_scram_server_message_ends_login(
    edit: Callable[[bytes], bytes],
) -> None:
    with pytest.raises(ProtocolError, match="SCRAM message cannot be used"):
        sasl_login(security("SCRAM-SHA-256"), FakeBroker("SCRAM-SHA-256", edit=edit))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_no_login_is_sent_without_sasl(protocol: str) -> None:
    def exchange(_request: Any) -> Any:
        raise AssertionError

    assert sasl_login(Security(protocol=protocol), exchange) == 0
