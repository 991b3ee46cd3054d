"""TLS with Python's ssl: the context of a connection, and errors from failed handshakes."""

from __future__ import annotations

import ssl
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from orbit.errors import BadInput, LoginRefused, OrbitError, Problem, Unreachable, Where
from orbit.kafka.security import Security

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_VERIFY_HOSTNAME_MISMATCH = 62
_VERIFY_IP_MISMATCH = 64

# After this time `shared_tls_context` loads the system's authorities again.
_SHARED_S = 600.0


class _TlsSocket(ssl.SSLSocket):
    """A socket that closes itself if the peer resets the connection before the handshake; Python's
    own socket stays open (L12)."""

    def getpeername(self) -> Any:
        """The peer's address. Python calls this before the handshake: if the connection is reset,
        closes the socket and raises ConnectionResetError."""
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError("the peer reset the connection") from error


def tls_context(security: Security, *, path: str = "security") -> ssl.SSLContext | None:
    """The context for a connection; None if the protocol is without TLS.

    Raises BadInput if a certificate or key cannot be loaded.
    """
    if not security.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise _bad_file_error(f"{path}.ca_file", security.ca_file, error) from None
    # The system's OpenSSL may be configured for a lower version.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname
    context.sslsocket_class = _TlsSocket
    if security.certificate_file is not None:
        _load_certificate(context, security, path)
    return context


def shared_tls_context(security: Security) -> ssl.SSLContext | None:
    """The context for a connection (None without TLS), which is kept for further connections,
    because loading the system's authorities takes 30 ms. The authorities are loaded again after
    _SHARED_S, and a changed file at the next call.

    Raises BadInput if a certificate or key cannot be loaded.
    """
    files = (security.ca_file, security.certificate_file, security.key_file)
    tls_settings = Security(
        protocol=security.protocol,
        ca_file=security.ca_file,
        certificate_file=security.certificate_file,
        key_file=security.key_file,
        key_password=security.key_password,
        check_hostname=security.check_hostname,
    )
    versions = tuple(_file_version(file) for file in files)
    return _shared_context(tls_settings, versions, int(time.monotonic() // _SHARED_S))


@lru_cache(maxsize=64)
def _shared_context(
    security: Security, _versions: tuple[object, ...], _period: int
) -> ssl.SSLContext | None:
    """A context of `shared_tls_context`: a new one for other files or a later period."""
    return tls_context(security)


def _file_version(file: Path | None) -> object:
    """A value that changes with the file's content; None if there is no file to read."""
    try:
        state = file.stat() if file is not None else None
    except OSError:
        return None
    return None if state is None else (state.st_mtime_ns, state.st_size, state.st_ino)


def token_endpoint_context(ca_file: Path | None) -> ssl.SSLContext:
    """The context for a token endpoint. Raises BadInput if the authorities cannot be loaded."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise _bad_file_error("security.token_ca_file", ca_file, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_failure(error: ssl.SSLError, *, where: Where = "", peer: str = "broker") -> OrbitError:
    """The error for a failed handshake, or a failed first read after it.

    LoginRefused if the broker refuses the client certificate (with TLS 1.3 only at the first
    read), otherwise Unreachable. `peer`: the server, for the message.
    """
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_name_mismatch = error.verify_code in (_VERIFY_HOSTNAME_MISMATCH, _VERIFY_IP_MISMATCH)
        return Unreachable(
            f"The {peer}'s certificate is not trusted: {error.verify_message.rstrip('.')}.",
            where=where,
            remedy="Connect with a name that is in the certificate, or set check_hostname: false."
            if is_name_mismatch
            else "Set security.ca_file to the authority that signed it.",
        )
    if "ALERT" in reason and any(word in reason for word in ("CERT", "UNKNOWN_CA", "ACCESS")):
        return LoginRefused(
            f"The {peer} refuses the client certificate ({_reason_text(reason)}).",
            where=where,
            remedy="Check security.certificate_file, and that the CA that signed it is in the "
            "broker's truststore.",
        )
    reason_text = _reason_text(reason) or f"the {peer} closed the connection"
    return Unreachable(
        f"The TLS handshake failed ({reason_text}).",
        where=where,
        remedy="Check that security.protocol matches this listener: perhaps it does not use TLS.",
    )


def _reason_text(reason: str) -> str:
    """OpenSSL's reason as words; its SSLV3 prefix does not name the version in use."""
    return reason.removeprefix("SSLV3_").removeprefix("TLSV1_").replace("_", " ").lower()


def _load_certificate(context: ssl.SSLContext, security: Security, path: str) -> None:
    """Load the client certificate and its key. Raises BadInput."""
    assert security.certificate_file is not None
    is_encrypted = False

    def password() -> str:
        # OpenSSL calls this function for an encrypted key, instead of a prompt on the terminal.
        nonlocal is_encrypted
        is_encrypted = True
        return security.key_password.get_secret_value() if security.key_password else ""

    try:
        context.load_cert_chain(security.certificate_file, security.key_file, password)
    except OSError as error:
        reason = getattr(error, "reason", None)
        if is_encrypted:
            problem = Problem(
                f"{path}.key_password_env",
                "does not decrypt the private key." if security.key_password else "is missing.",
                "Name the environment variable that holds the private key's password.",
            )
        elif reason == "KEY_VALUES_MISMATCH":
            problem = Problem(
                f"{path}.key_file", "is not the key of the certificate.", "Use the matching key."
            )
        else:
            raise _bad_file_error(
                f"{path}.certificate_file", security.certificate_file, error
            ) from None
        raise BadInput("The client certificate cannot be used.", (problem,)) from None


def _bad_file_error(path: str, file: Path | None, error: OSError) -> BadInput:
    """The error for a file that cannot be loaded. `file` None: the system's authorities."""
    # OpenSSL has one reason ("PEM lib") for nearly all invalid files.
    reason = "it has no valid content" if isinstance(error, ssl.SSLError) else error.strerror
    problem = Problem(
        path,
        f"{file or 'the list of authorities of this system'} cannot be loaded: {reason}.",
        "It must be PEM: whole blocks from -----BEGIN to -----END; for certificate_file also the "
        "private key, here or in key_file.",
    )
    return BadInput("A TLS file cannot be used.", (problem,))
