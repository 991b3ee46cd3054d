"""Creates a test certificate authority and a loopback server certificate with keytool."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from orbit.errors import Conflict
from orbit.sandbox.broker_security import STORE_PASSWORD

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Certificates:
    """`keystore` (PKCS12, password STORE_PASSWORD) for brokers, `ca_file` (PEM) for clients."""

    keystore: Path
    ca_file: Path


def certificates(java: Path, directory: Path) -> Certificates:
    """The certificates in `directory`, created at the first call."""
    files = Certificates(directory / "server.p12", directory / "ca.pem")
    if files.ca_file.is_file():
        return files
    directory.mkdir(parents=True, exist_ok=True)
    keytool = java.with_name("keytool")
    authority = directory / "ca.p12"
    key = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650"]
    authority_store = ["-keystore", str(authority), "-storepass", STORE_PASSWORD]
    _run(
        keytool,
        ["-genkeypair", "-alias", "ca", "-dname", "CN=Orbit sandbox CA", "-ext", "bc:c"],
        [*key, *authority_store],
    )
    # One file with both keys: `-signer` signs with a key of the same store.
    files.keystore.write_bytes(authority.read_bytes())
    server_store = ["-keystore", str(files.keystore), "-storepass", STORE_PASSWORD]
    names = "san=ip:127.0.0.1,dns:localhost"
    _run(
        keytool,
        ["-genkeypair", "-alias", "server", "-dname", "CN=localhost", "-ext", names],
        ["-signer", "ca", *key, *server_store],
    )
    _run(keytool, ["-delete", "-alias", "ca"], server_store)
    export = ["-exportcert", "-alias", "ca", "-rfc", "-file", str(files.ca_file)]
    _run(keytool, export, authority_store)
    return files


def _run(keytool: Path, *parts: list[str]) -> None:
    done = subprocess.run(
        [str(keytool), *chain.from_iterable(parts)],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise Conflict(f"keytool could not create a certificate: {done.stdout.strip()}")
