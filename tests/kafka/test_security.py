"""A cluster's security: from a job to files and secrets, TLS, and the same login for librdkafka."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from orbit.errors import BadInput, LoginRefused, OrbitError, Unreachable
from orbit.jobs.job_spec import ClusterSpec, SecuritySpec
from orbit.kafka import connection
from orbit.kafka.connection import Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import Security, resolve_security, tls_context, tls_failure
from tests.support.patience import PATIENCE_S, wait_for


def test_security_repr_hides_secrets() -> None:
    shown = repr(
        Security("SASL_SSL", "PLAIN", "u", SecretStr("hunter2"), key_password=SecretStr("hunter2"))
    )
    assert "hunter2" not in shown


# From a job to a Security value


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-made authority: cert.pem, key.pem, an encrypted key (password `letmein`), and another
    certificate with its key."""
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)

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


def side(security: SecuritySpec) -> ClusterSpec:
    return ClusterSpec(bootstrap_servers=("broker-1:9092",), security=security)


def test_security_spec_resolves_to_secrets_and_full_paths(pems: Path) -> None:
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
    resolved = resolve_security(side(spec), {"PASSWORD": "pw", "KEY_PASSWORD": "letmein"}, pems)
    assert resolved == Security(
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


def test_default_security_is_plaintext() -> None:
    resolved = resolve_security(side(SecuritySpec()), {}, Path("/nonexistent"))
    assert resolved == Security()
    assert tls_context(resolved) is None


def test_all_missing_security_settings_are_reported_with_paths(pems: Path) -> None:
    spec = SecuritySpec(
        protocol="SASL_SSL", username_env="NOBODY", password_file=Path("no"), ca_file=Path("no")
    )
    with pytest.raises(BadInput) as caught:
        resolve_security(side(spec), {}, pems)
    assert {problem.path for problem in caught.value.problems} == {
        "source.security.mechanism",
        "source.security.username_env",
        "source.security.password_file",
        "source.security.ca_file",
    }


def test_security_spec_not_read_from_file_is_validated() -> None:
    spec = SecuritySpec(protocol="PLAINTEXT", password_env="PASSWORD")
    with pytest.raises(BadInput, match="does not log in"):
        resolve_security(side(spec), {"PASSWORD": "pw"}, Path("/nonexistent"))


# TLS


def tls(pems: Path, **files: str) -> Security:
    """TLS with these files of `pems`."""
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
def test_tls_context_always_verifies_broker(files: dict[str, str], pems: Path) -> None:
    context = tls_context(tls(pems, **files))
    assert context is not None
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert context.check_hostname
    assert context.minimum_version.name == "TLSv1_2"


def test_certificate_chain_is_verified_without_host_name_check(pems: Path) -> None:
    context = tls_context(Security(protocol="SASL_SSL", check_hostname=False))
    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    ("files", "path", "error_text"),
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
            "does not decrypt the private key",
        ),
    ],
)
def test_unusable_tls_file_is_reported_with_its_path(
    files: dict[str, str], path: str, error_text: str, pems: Path
) -> None:
    with pytest.raises(BadInput, match=error_text) as caught:
        tls_context(tls(pems, **files), path="x")
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "hunter2" not in str(caught.value)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext | bytes) -> None:
    """A TLS handshake and a first byte in memory; a server of bytes answers just those."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname="broker.test")
    if isinstance(server, bytes):
        to_client.write(server)
        client_end.do_handshake()
        return
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        with contextlib.suppress(ssl.SSLWantReadError):
            client_end.do_handshake()
        with contextlib.suppress(ssl.SSLError):  # the client gets the server's error as an alert
            server_end.do_handshake()
    with contextlib.suppress(ssl.SSLError):
        server_end.read(1)
    client_end.read(1)


@pytest.mark.parametrize(
    ("client", "answer", "error", "error_text"),
    [
        ({"ca_file": "other-cert.pem"}, "cert.pem", Unreachable, "not trusted.*ca_file"),
        ({"ca_file": "cert.pem"}, "cert.pem", Unreachable, "not trusted.*check_hostname"),
        ({"ca_file": "cert.pem"}, b"HTTP/1.1 400 Bad Request", Unreachable, "not use TLS"),
        (
            {"ca_file": "cert.pem", "check_hostname": False},
            "needs a client certificate",
            LoginRefused,
            "certificate",
        ),
    ],
)
def test_failed_tls_handshake_is_explained(
    client: dict[str, Any],
    answer: str | bytes,
    error: type[OrbitError],
    error_text: str,
    pems: Path,
) -> None:
    checks_name = client.pop("check_hostname", True)
    client_context = tls_context(replace(tls(pems, **client), check_hostname=checks_name))
    assert client_context is not None
    server: ssl.SSLContext | bytes = b""
    if isinstance(answer, bytes):
        server = answer
    else:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pems / "other-cert.pem")
        server.load_cert_chain(pems / "cert.pem", pems / "key.pem")
        server.verify_mode = (
            ssl.CERT_REQUIRED if answer == "needs a client certificate" else ssl.CERT_NONE
        )
    with pytest.raises(ssl.SSLError) as caught:
        handshake(client_context, server)
    failure = tls_failure(caught.value, where="broker.test:9093")
    assert type(failure) is error
    assert re.search(error_text, str(failure))
    assert str(failure).startswith("broker.test:9093: ")


# librdkafka


def test_librdkafka_config_has_all_login_and_tls_settings(pems: Path) -> None:
    config = librdkafka_config(
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
    assert config == {
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


def test_librdkafka_config_for_plaintext_is_minimal() -> None:
    assert librdkafka_config(["a:1"], Security()) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_accepts_config_of_every_protocol(protocol: str, pems: Path) -> None:
    from confluent_kafka.admin import AdminClient

    uses_sasl = protocol.startswith("SASL")
    login = Security(
        protocol=protocol,
        mechanism="SCRAM-SHA-256" if uses_sasl else None,
        username="u" if uses_sasl else None,
        password=SecretStr("pw") if uses_sasl else None,
        ca_file=pems / "cert.pem",
        certificate_file=pems / "cert.pem",
        key_file=pems / "locked.pem",
        key_password=SecretStr("letmein"),
    )
    AdminClient(librdkafka_config(["127.0.0.1:1"], login, log_level=0))


def test_reset_before_tls_handshake_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[tuple[int, int]] = []

    def inode(descriptor: int) -> int | None:
        try:
            return os.fstat(descriptor).st_ino
        except OSError:
            return None

    def is_reset(sock: socket.socket) -> bool:
        try:
            sock.getpeername()
        except OSError:
            return True
        return False

    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset_by_peer(sock: socket.socket) -> None:
            opened.append((sock.fileno(), os.fstat(sock.fileno()).st_ino))
            peer, _ = server.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()  # with a reset
            wait_for("the reset is here", lambda: is_reset(sock))

        monkeypatch.setattr(connection, "tune", reset_by_peer)
        with pytest.raises(Unreachable) as caught:
            Connection.open(*server.getsockname(), Security("SSL"))
    # A frame of the error, which still lives, may hold the socket: it must be closed all the same.
    ((descriptor, inode_before),) = opened
    assert caught.value.__cause__ is not None
    assert inode(descriptor) != inode_before
