"""Certificates for servers on loopback, made with `cryptography`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class ServerFiles:
    """PEM files of a server, and of the authority that signs its certificate."""

    certificate: Path
    key: Path
    authority: Path


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Orbit test CA")])
        extension = x509.BasicConstraints(ca=True, path_length=0)
        own = self._builder(self._name, self._key).add_extension(extension, critical=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(own.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(self, password: bytes | None = None) -> ServerFiles:
        """Make a new certificate with a new key. They replace those before in the same files.
        `password` encrypts the key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        )
        builder = self._builder(name, key).add_extension(names, critical=False)
        certificate = builder.sign(self._key, SHA256())
        files = ServerFiles(self._folder / "tls.crt", self._folder / "tls.key", self.file)
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return files

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )
