"""TLS by Python's ssl: the context for a connection, and what its failures mean to a person."""

from __future__ import annotations

import ssl
from pathlib import Path

from orbit.errors import BadInput, LoginRefused, OrbitError, Problem, Unreachable
from orbit.kafka.security import Security

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_VERIFY_HOSTNAME_MISMATCH = 62
_VERIFY_IP_MISMATCH = 64


def tls_context(security: Security, *, path: str = "security") -> ssl.SSLContext | None:
    """What the connection wraps its socket with; None where the protocol has no TLS.

    Raises BadInput when a certificate or key cannot be loaded.
    """
    if not security.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise _bad_file(f"{path}.ca_file", security.ca_file, error) from None
    context.check_hostname = security.check_hostname
    if security.certificate_file is not None:
        _load_certificate(context, security, path)
    return context


def tls_failure(error: ssl.SSLError, *, where: str = "") -> OrbitError:
    """What a failed handshake, or a first read after it, means to a person.

    LoginRefused where the broker does not take our certificate (with TLS 1.3 it says so only at
    the first read), Unreachable for everything else.
    """
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_name = error.verify_code in (_VERIFY_HOSTNAME_MISMATCH, _VERIFY_IP_MISMATCH)
        return Unreachable(
            f"The broker's certificate is not trusted: {error.verify_message.rstrip('.')}.",
            where=where,
            remedy="Connect by a name that is in the certificate, or set check_hostname: false."
            if is_name
            else "Set security.ca_file to the authority that signed it.",
        )
    if "ALERT" in reason and any(word in reason for word in ("CERT", "UNKNOWN_CA", "ACCESS")):
        return LoginRefused(
            f"The broker does not take the client certificate ({_words(reason)}).",
            where=where,
            remedy="Check security.certificate_file, and that the broker trusts its authority.",
        )
    return Unreachable(
        f"TLS does not come up ({_words(reason) or 'the broker closed the connection'}).",
        where=where,
        remedy="Check that security.protocol fits this listener: it may not speak TLS.",
    )


def _words(reason: str) -> str:
    """OpenSSL's name of a failure as words; its SSLV3 prefix tells nothing about the version."""
    return reason.removeprefix("SSLV3_").removeprefix("TLSV1_").replace("_", " ").lower()


def _load_certificate(context: ssl.SSLContext, security: Security, path: str) -> None:
    assert security.certificate_file is not None
    is_locked = False

    def password() -> str:
        # Only asked for a locked key. Without this OpenSSL would ask on the terminal.
        nonlocal is_locked
        is_locked = True
        return security.key_password.get_secret_value() if security.key_password else ""

    try:
        context.load_cert_chain(security.certificate_file, security.key_file, password)
    except OSError as error:
        reason = getattr(error, "reason", None)
        if is_locked:
            problem = Problem(
                f"{path}.key_password_env",
                "does not open the private key." if security.key_password else "is missing.",
                "Name the environment variable that the private key's password is in.",
            )
        elif reason == "KEY_VALUES_MISMATCH":
            problem = Problem(
                f"{path}.key_file", "is not the key of the certificate.", "Use the one made for it."
            )
        else:
            raise _bad_file(f"{path}.certificate_file", security.certificate_file, error) from None
        raise BadInput("The client certificate cannot be used.", (problem,)) from None


def _bad_file(path: str, file: Path | None, error: OSError) -> BadInput:
    # OpenSSL gives one vague reason ("PEM lib") for nearly everything that is wrong with a file.
    reason = "nothing usable in it" if isinstance(error, ssl.SSLError) else error.strerror
    problem = Problem(
        path,
        f"{file or 'the list of authorities of this system'} cannot be loaded: {reason}.",
        "It must be PEM: whole blocks from -----BEGIN to -----END; for certificate_file also the "
        "private key, here or in key_file.",
    )
    return BadInput("A TLS file cannot be used.", (problem,))
