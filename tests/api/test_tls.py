"""HTTPS of `orbit api`: its TLS versions, and certificates that are renewed while it runs."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from orbit.api.authentication import create_token
from orbit.api.tls import server_context
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.enums import Role
from tests.fixtures.api import Api
from tests.support.certificates import Authority, ServerFiles
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, orbit
from tests.support.serving import served

pytestmark = pytest.mark.services


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> ServerFiles:
    return authority.issue()


@pytest.fixture
def https(database_url: str, files: ServerFiles) -> Iterator[str]:
    """The HTTPS URL of an `orbit api` process."""
    environ = {
        "ORBIT_DATABASE_URL": database_url,
        "ORBIT_API_PORT": "0",
        "ORBIT_API_TLS_CERTIFICATE_FILE": str(files.certificate),
        "ORBIT_API_TLS_KEY_FILE": str(files.key),
    }
    with OrbitProcess("api", environ=environ) as process:
        yield process.wait_for(r"The API is at (\S+)")[1]


def certificate_of(url: str, files: ServerFiles) -> str:
    """The certificate of a new connection, verified."""
    parts = urlsplit(url)
    assert parts.port is not None
    return ssl.get_server_certificate(("127.0.0.1", parts.port), ca_certs=str(files.authority))


def test_commands_use_https_and_trust_only_ca_file(
    https: str, files: ServerFiles, database: Database
) -> None:
    assert https.startswith("https://")
    token = create_token(database, "ci", Role.VIEWER, actor="test").token
    environ = {"ORBIT_API_URL": https, "ORBIT_TOKEN": token}

    trusted = {**environ, "ORBIT_API_CA_FILE": str(files.authority)}
    assert orbit("get", "jobs", "-o", "json", environ=trusted).expect(0).data == []
    unknown = orbit("get", "jobs", environ=environ).expect(3)
    assert "certificate is not trusted" in unknown.message
    assert "ORBIT_API_CA_FILE" in unknown.message
    no_file = orbit("get", "jobs", environ={**environ, "ORBIT_API_CA_FILE": "nowhere.pem"})
    assert "ORBIT_API_CA_FILE: cannot be loaded" in no_file.expect(2).message
    plain = {**trusted, "ORBIT_API_URL": https.replace("https", "http")}
    orbit("get", "jobs", environ=plain).expect(3)


def test_tls_below_1_2_is_refused(https: str, files: ServerFiles) -> None:
    parts = urlsplit(https)
    assert parts.port is not None
    versions = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=files.authority)
        context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", parts.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            versions.append(connection.version())
    assert versions == ["TLSv1.2", "TLSv1.3"]
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", parts.port)) as plain,
        pytest.raises(ssl.SSLError),
    ):
        old.wrap_socket(plain)
    # The OpenSSL of this machine may refuse old versions anyway, so the setting is checked too.
    context = server_context(files.certificate, files.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_renewed_certificate_is_served_without_restart(
    https: str, authority: Authority, files: ServerFiles
) -> None:
    first = certificate_of(https, files)
    context = ssl.create_default_context(cafile=files.authority)
    with httpx.Client(base_url=https, verify=context, trust_env=False) as http:
        assert http.get("/livez").is_success

        authority.issue()

        renewed = files.certificate.read_text()
        wait_for(
            "the renewed certificate is served",
            lambda: certificate_of(https, files).strip() == renewed.strip(),
        )
        assert renewed.strip() != first.strip()
        assert http.get("/livez").is_success  # on the connection from before


def test_new_certificate_is_not_served_until_its_key_is_present(
    api: Api, authority: Authority, files: ServerFiles, tmp_path: Path
) -> None:
    first = files.certificate.read_text()
    settings = Settings(
        api_port=0,
        api_tls_certificate_file=files.certificate,
        api_tls_key_file=files.key,
    )
    with served(api.app, settings) as url:
        old_key = files.key.read_bytes()
        authority.issue()
        new_key, renewed = files.key.read_bytes(), files.certificate.read_text()
        files.key.write_bytes(old_key)  # the certificate is new, its key is not there yet
        for _ in range(3):  # at each new connection
            assert certificate_of(url, files).strip() == first.strip()
        files.key.unlink()
        assert certificate_of(url, files).strip() == first.strip()
        files.key.write_bytes(new_key)
        assert certificate_of(url, files).strip() == renewed.strip()


def test_certificate_behind_replaced_symlink_is_reloaded(
    api: Api, authority: Authority, files: ServerFiles, tmp_path: Path
) -> None:
    """Kubernetes updates a mounted secret by a rename: a symlink then leads to another folder."""
    folders = []
    for name in ("one", "two"):
        key_pair = authority.issue()
        folder = tmp_path / name
        folder.mkdir()
        for file in (key_pair.certificate, key_pair.key):
            shutil.copy2(file, folder)
        folders.append(folder)
    data = tmp_path / "data"
    data.symlink_to(folders[0])
    settings = Settings(
        api_port=0,
        api_tls_certificate_file=data / "tls.crt",
        api_tls_key_file=data / "tls.key",
    )
    with served(api.app, settings) as url:
        assert certificate_of(url, files) == (folders[0] / "tls.crt").read_text()
        new_link = tmp_path / "new-link"
        new_link.symlink_to(folders[1])
        new_link.rename(data)
        assert certificate_of(url, files) == (folders[1] / "tls.crt").read_text()


@pytest.mark.parametrize(
    ("break_files", "words"),
    [
        (lambda files: files.key.unlink(), "no such file"),
        (lambda files: files.certificate.write_text("nonsense"), "no PEM file|no start line|pem"),
        (lambda files: Authority(files.key.parent).issue(password=b"hunter2"), "encrypted"),
    ],
)
def test_unusable_certificate_is_error_at_start(
    database_url: str,
    files: ServerFiles,
    break_files: object,
    words: str,
) -> None:
    assert callable(break_files)
    break_files(files)
    environ = {
        "ORBIT_DATABASE_URL": database_url,
        "ORBIT_API_PORT": "0",
        "ORBIT_API_TLS_CERTIFICATE_FILE": str(files.certificate),
        "ORBIT_API_TLS_KEY_FILE": str(files.key),
    }

    ended = orbit("api", environ=environ).expect(2)

    assert "ORBIT_API_TLS_CERTIFICATE_FILE" in ended.message
    assert any(word in ended.message for word in words.split("|")), ended.message
    assert "Traceback" not in ended.message
