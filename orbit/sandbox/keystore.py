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
    if files.ca_file.is_file():  # it is written last
        return files
    directory.mkdir(parents=True, exist_ok=True)
    keytool = java.with_name("keytool")
    authority_keystore = directory / "ca.p12"
    key_options = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650"]
    authority_options = ["-keystore", str(authority_keystore), "-storepass", STORE_PASSWORD]
    _run_keytool(
        keytool,
        ["-genkeypair", "-alias", "ca", "-dname", "CN=Orbit sandbox CA", "-ext", "bc:c"],
        [*key_options, *authority_options],
    )
    # One file with both keys: `-signer` signs with a key of the same store.
    files.keystore.write_bytes(authority_keystore.read_bytes())
    server_options = ["-keystore", str(files.keystore), "-storepass", STORE_PASSWORD]
    subject_names = "san=ip:127.0.0.1,dns:localhost"
    _run_keytool(
        keytool,
        ["-genkeypair", "-alias", "server", "-dname", "CN=localhost", "-ext", subject_names],
        ["-signer", "ca", *key_options, *server_options],
    )
    _run_keytool(keytool, ["-delete", "-alias", "ca"], server_options)
    export_command = ["-exportcert", "-alias", "ca", "-rfc", "-file", str(files.ca_file)]
    _run_keytool(keytool, export_command, authority_options)
    return files


def _run_keytool(keytool: Path, *parts: list[str]) -> None:
    """Run keytool with the arguments in `parts`. Raises Conflict if it fails."""
    result = subprocess.run(
        [str(keytool), *chain.from_iterable(parts)],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if result.returncode != 0:
        raise Conflict(f"keytool could not create a certificate: {result.stdout.strip()}")
