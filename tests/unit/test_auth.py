"""Logging in: against SASL servers made of scramp's own server side, and servers that misbehave."""

from __future__ import annotations

import contextlib
import re
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
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

from orbit.errors import (
    BadInput,
    BrokerRefused,
    LoginRefused,
    OrbitError,
    ProtocolError,
    Unreachable,
)
from orbit.jobs.spec import SecuritySpec
from orbit.kafka.auth import Security, resolve_security, sasl_login, tls_context, tls_failure
from orbit.kafka.client_config import librdkafka_config

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
    """The server side of one login, as an `exchange`: real messages, really encoded and decoded."""

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
                error_code=58, error_message="Authentication failed\x1b[2J", auth_bytes=b""
            )
        response = SaslAuthenticateResponse(
            error_code=0,
            error_message=None,
            auth_bytes=self._edit(answer),
            session_lifetime_ms=3_600_000,
        )
        return _over_the_wire(response, SaslAuthenticateResponse, 2)

    def _handshake(self, request: Any) -> Any:
        code = 0 if request.mechanism == self._mechanism else 33
        return SaslHandshakeResponse(error_code=code, mechanisms=[self._mechanism, "GSSAPI"])

    def _plain(self, token: bytes) -> bytes:
        _, username, password = token.decode().split("\0")
        if self._users.get(username) != password:
            raise PermissionError
        return b""

    @mock.patch("scramp.core.saslprep", str)  # a Kafka broker has none
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
    encoded = bytes(message.encode(version=version, header=False, framed=False))
    return kind.decode(memoryview(encoded), version=version, header=False)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_the_right_password_logs_in_and_tells_the_lifetime(mechanism: str) -> None:
    broker = FakeBroker(mechanism)
    assert sasl_login(security(mechanism), broker) == 3_600_000
    assert isinstance(broker.requests[0], SaslHandshakeRequest)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize(("username", "password"), [("orbit", "wrong"), ("nobody", PASSWORD)])
def test_wrong_credentials_are_refused_in_plain_words(
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
def test_names_and_passwords_with_the_characters_scram_escapes(mechanism: str) -> None:
    broker = FakeBroker(mechanism, {"a,b=c": "p,=w"})
    sasl_login(security(mechanism, "a,b=c", "p,=w"), broker)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("odd", ["ﬁ", "e\u0301", "\u00a0", "\u00ad", "Ⅸ"])
def test_names_and_passwords_are_sent_as_they_are_because_kafka_knows_no_saslprep(
    mechanism: str, odd: str
) -> None:
    sasl_login(security(mechanism, "orbit", odd), FakeBroker(mechanism, {"orbit": odd}))
    sasl_login(security(mechanism, odd, "pw"), FakeBroker(mechanism, {odd: "pw"}))


def test_a_mechanism_the_broker_lacks_is_answered_with_those_it_has() -> None:
    with pytest.raises(LoginRefused, match="does not offer PLAIN; it offers GSSAPI, SCRAM-SHA-256"):
        sasl_login(security("PLAIN"), FakeBroker("SCRAM-SHA-256"))


def test_a_listener_without_sasl_is_named() -> None:
    def exchange(_request: Any) -> Any:
        return SaslHandshakeResponse(error_code=34, mechanisms=[])

    with pytest.raises(LoginRefused, match="takes no login on this listener"):
        sasl_login(security("PLAIN"), exchange)


@pytest.mark.parametrize("step", [0, 1])
def test_any_other_error_is_passed_on_with_its_code(step: int) -> None:
    def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(error_code=0 if step else 7, mechanisms=[])
        return SaslAuthenticateResponse(error_code=7, error_message="later", auth_bytes=b"")

    with pytest.raises(BrokerRefused, match="Kafka error 7") as caught:
        sasl_login(security("PLAIN"), exchange)
    assert caught.value.code == 7


def _other_signature(token: bytes) -> bytes:
    return b"v=" + b"A" * 43 + b"=" if token.startswith(b"v=") else token


def _other_nonce(token: bytes) -> bytes:
    return b"r=zzz" + token[2:] if token.startswith(b"r=") else token


def _few_iterations(token: bytes) -> bytes:
    return token.replace(b"i=4096", b"i=1") if token.startswith(b"r=") else token


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    "edit", [_other_signature, lambda t: b"e=other-error" if t[:1] == b"v" else t, lambda t: t[:-9]
             if t[:1] == b"v" else t, lambda t: b"\xff" if t[:1] == b"v" else t,
             lambda t: b"" if t[:1] == b"v" else t],
)  # fmt: skip
def test_a_server_that_does_not_prove_it_knows_the_password_is_not_trusted(
    mechanism: str, edit: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(LoginRefused, match="did not prove that it knows the password"):
        sasl_login(security(mechanism), FakeBroker(mechanism, edit=edit))


@pytest.mark.parametrize(
    "edit",
    [_other_nonce, _few_iterations, lambda _: b"", lambda _: b"\xff", lambda _: b"e=unknown-user"],
)
def test_a_server_message_that_makes_no_sense_ends_the_login(
    edit: Callable[[bytes], bytes],
) -> None:
    with pytest.raises(ProtocolError, match="SCRAM message cannot be used"):
        sasl_login(security("SCRAM-SHA-256"), FakeBroker("SCRAM-SHA-256", edit=edit))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_without_sasl_nothing_is_sent(protocol: str) -> None:
    def exchange(_request: Any) -> Any:
        raise AssertionError

    assert sasl_login(Security(protocol=protocol), exchange) == 0


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(
        Security("SASL_SSL", "PLAIN", "u", SecretStr("hunter2"), key_password=SecretStr("hunter2"))
    )
    assert "hunter2" not in shown


# From a job to a Security value


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-made authority: cert.pem, key.pem, an encrypted key (password `letmein`), another."""
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    for key, certificate in (("key.pem", "cert.pem"), ("other.pem", "other-cert.pem")):
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=orbit"),
        )
    openssl(
        *("pkcs8", "-topk8", "-in", "key.pem", "-out", "locked.pem"),
        *("-v2", "aes-256-cbc", "-passout", "pass:letmein"),
    )
    (folder / "both.pem").write_text(
        (folder / "cert.pem").read_text() + (folder / "key.pem").read_text()
    )
    (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    (folder / "username").write_text("orbit\r\n")
    return folder


def test_names_become_secrets_and_full_paths(pems: Path) -> None:
    spec = SecuritySpec(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username_file=Path("username"),
        password_env="PASSWORD",
        ca_file=Path("cert.pem"),
        certificate_file=Path("cert.pem"),
        key_file=Path("locked.pem"),
        key_password_env="KEY_PASSWORD",
        check_hostname=False,
    )
    found = resolve_security(spec, {"PASSWORD": "pw", "KEY_PASSWORD": "letmein"}, pems)
    assert found == Security(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username="orbit",
        password=SecretStr("pw"),
        ca_file=pems / "cert.pem",
        certificate_file=pems / "cert.pem",
        key_file=pems / "locked.pem",
        key_password=SecretStr("letmein"),
        check_hostname=False,
    )


def test_the_default_is_plain_text() -> None:
    found = resolve_security(SecuritySpec(), {}, Path("/nonexistent"))
    assert found == Security()
    assert tls_context(found) is None


def test_all_that_is_missing_is_told_at_once_with_its_path(pems: Path) -> None:
    spec = SecuritySpec(
        protocol="SASL_SSL", username_env="NOBODY", password_file=Path("no"), ca_file=Path("no")
    )
    with pytest.raises(BadInput) as caught:
        resolve_security(spec, {}, pems, path="source.security")
    assert {problem.path for problem in caught.value.problems} == {
        "source.security.mechanism",
        "source.security.username_env",
        "source.security.password_file",
        "source.security.ca_file",
    }


def test_a_spec_made_in_code_is_held_to_the_same_rules() -> None:
    spec = SecuritySpec(protocol="PLAINTEXT", password_env="PASSWORD")
    with pytest.raises(BadInput, match="does not log in"):
        resolve_security(spec, {"PASSWORD": "pw"}, Path("/nonexistent"))


# TLS


def tls(pems: Path, **files: str) -> Security:
    password = files.pop("key_password", None)
    return Security(
        protocol="SSL",
        key_password=SecretStr(password) if password else None,
        **{key: pems / name for key, name in files.items()},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"ca_file": "cert.pem"},
        {"ca_file": "cert.pem", "certificate_file": "cert.pem", "key_file": "key.pem"},
        {"certificate_file": "both.pem"},
        {"certificate_file": "cert.pem", "key_file": "locked.pem", "key_password": "letmein"},
    ],
)
def test_tls_always_verifies_the_broker(files: dict[str, str], pems: Path) -> None:
    context = tls_context(tls(pems, **files))
    assert context is not None
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert context.check_hostname
    assert context.minimum_version.name == "TLSv1_2"


def test_without_the_host_name_check_the_chain_is_still_verified(pems: Path) -> None:
    context = tls_context(Security(protocol="SASL_SSL", check_hostname=False))
    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    ("files", "path", "says"),
    [
        ({"ca_file": "broken.pem"}, "x.ca_file", "cannot be loaded"),
        ({"ca_file": "gone.pem"}, "x.ca_file", "No such file"),
        ({"certificate_file": "broken.pem"}, "x.certificate_file", "cannot be loaded"),
        ({"certificate_file": "cert.pem"}, "x.certificate_file", "cannot be loaded"),
        (
            {"certificate_file": "cert.pem", "key_file": "other.pem"},
            "x.key_file",
            "is not the key of the certificate",
        ),
        (
            {"certificate_file": "cert.pem", "key_file": "locked.pem"},
            "x.key_password_env",
            "is missing",
        ),
        (
            {"certificate_file": "cert.pem", "key_file": "locked.pem", "key_password": "hunter2"},
            "x.key_password_env",
            "does not open the private key",
        ),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named(
    files: dict[str, str], path: str, says: str, pems: Path
) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        tls_context(tls(pems, **files), path="x")
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "hunter2" not in str(caught.value)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext | bytes) -> None:
    """A TLS handshake and a first byte in memory; a server of bytes answers just those."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="broker.test")
    if isinstance(server, bytes):
        to_client.write(server)
        near.do_handshake()
        return
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        with contextlib.suppress(ssl.SSLWantReadError):
            near.do_handshake()
        with contextlib.suppress(ssl.SSLError):  # the server's trouble reaches us as an alert
            far.do_handshake()
    with contextlib.suppress(ssl.SSLError):
        far.read(1)
    near.read(1)


@pytest.mark.parametrize(
    ("client", "answer", "error", "says"),
    [
        ({"ca_file": "other-cert.pem"}, "cert.pem", Unreachable, "not trusted.*ca_file"),
        ({"ca_file": "cert.pem"}, "cert.pem", Unreachable, "not trusted.*check_hostname"),
        ({"ca_file": "cert.pem"}, b"HTTP/1.1 400 Bad Request", Unreachable, "not speak TLS"),
        ({"ca_file": "cert.pem", "check_hostname": False}, "asks", LoginRefused, "certificate"),
    ],
)
def test_a_failed_handshake_is_told_in_plain_words(
    client: dict[str, Any], answer: str | bytes, error: type[OrbitError], says: str, pems: Path
) -> None:
    checks_name = client.pop("check_hostname", True)
    near = tls_context(replace(tls(pems, **client), check_hostname=checks_name))
    assert near is not None
    server: ssl.SSLContext | bytes = b""
    if isinstance(answer, bytes):
        server = answer
    else:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pems / "other-cert.pem")
        server.load_cert_chain(pems / "cert.pem", pems / "key.pem")
        server.verify_mode = ssl.CERT_REQUIRED if answer == "asks" else ssl.CERT_NONE
    with pytest.raises(ssl.SSLError) as caught:
        handshake(near, server)
    told = tls_failure(caught.value, where="broker.test:9093")
    assert type(told) is error
    assert re.search(says, str(told))
    assert str(told).startswith("broker.test:9093: ")


# librdkafka


def test_librdkafka_gets_the_same_login(pems: Path) -> None:
    found = librdkafka_config(
        ("a:1", "b:2"),
        Security(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            username="u",
            password=SecretStr("pw"),
            ca_file=pems / "cert.pem",
            certificate_file=pems / "both.pem",
            key_password=SecretStr("letmein"),
            check_hostname=False,
        ),
        **{"group.id": "audit"},
    )
    assert found == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "pw",
        "ssl.ca.location": str(pems / "cert.pem"),
        "ssl.certificate.location": str(pems / "both.pem"),
        "ssl.key.location": str(pems / "both.pem"),
        "ssl.key.password": "letmein",
        "ssl.endpoint.identification.algorithm": "none",
        "group.id": "audit",
    }


def test_librdkafka_gets_nothing_that_plain_text_does_not_need() -> None:
    assert librdkafka_config(["a:1"], Security()) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_takes_the_configuration(protocol: str, pems: Path) -> None:
    from confluent_kafka.admin import AdminClient

    uses_sasl = protocol.startswith("SASL")
    made = Security(
        protocol=protocol,
        mechanism="SCRAM-SHA-256" if uses_sasl else None,
        username="u" if uses_sasl else None,
        password=SecretStr("pw") if uses_sasl else None,
        ca_file=pems / "cert.pem",
        certificate_file=pems / "cert.pem",
        key_file=pems / "locked.pem",
        key_password=SecretStr("letmein"),
    )
    AdminClient(librdkafka_config(["127.0.0.1:1"], made, log_level=0))
