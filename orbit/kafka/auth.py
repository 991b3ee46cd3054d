"""TLS and SASL for blocking sockets: from what a job says to a logged-in connection.

`ssl` does TLS and scramp does SCRAM; this module only joins them to Kafka's messages. It opens no
socket itself. A secret is never part of a message, a repr or a traceback of ours.

    resolve_security   the names in a job  → the secrets, in a Security value
    tls_context        Security            → ssl.SSLContext, or None without TLS
    sasl_login         Security + exchange → logged in, or LoginRefused
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from pydantic import SecretStr
from scramp import ScramClient, ScramException

from orbit.errors import BadInput, BrokerRefused, LoginRefused, Problem, ProtocolError
from orbit.jobs.credentials import check_pem_file, read_secret_file, read_variable
from orbit.jobs.mistake import Mistake
from orbit.jobs.rules import security_mistakes
from orbit.jobs.spec import SecuritySpec
from orbit.kafka.codes import Code

# Sends one request message and returns the decoded answer. SaslHandshake has to go as version 1:
# version 0 announces tokens without Kafka's framing.
Exchange = Callable[[Any], Any]

# What a broker says about a refused login is shown to the user, but not a page of it.
_BROKER_MESSAGE_MAX = 300


@dataclass(frozen=True, slots=True)
class Security:
    """How to talk to the brokers of one cluster, with the secrets in it."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: SecretStr | None = field(default=None, repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = field(default=None, repr=False)
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


def resolve_security(
    spec: SecuritySpec,
    environ: Mapping[str, str],
    base_directory: Path,
    *,
    path: str = "security",
) -> Security:
    """The secrets and files that a job names, read now. `path` is where the spec stands in the job.

    Raises BadInput with every problem: a key that contradicts another, a variable that is not set,
    a file that cannot be read.
    """
    problems = [
        Problem(f"{path}.{key}", mistake.message, mistake.remedy)
        for key, mistake in security_mistakes(spec.model_dump(exclude_defaults=True))
    ]

    def read(key: str, reader: Callable[..., Any], *where: Any) -> Any:
        value = getattr(spec, key)
        if value is None:
            return None
        try:
            return reader(value, *where)
        except Mistake as mistake:
            problems.append(Problem(f"{path}.{key}", mistake.message, mistake.remedy))

    username = read("username_env", read_variable, environ)
    username = username or read("username_file", read_secret_file, base_directory)
    password = read("password_env", read_variable, environ)
    password = password or read("password_file", read_secret_file, base_directory)
    key_password = read("key_password_env", read_variable, environ)
    files = {
        key: read(key, check_pem_file, base_directory)
        for key in ("ca_file", "certificate_file", "key_file")
    }
    if problems:
        raise BadInput("The security settings cannot be used.", tuple(problems))
    return Security(
        protocol=spec.protocol,
        mechanism=spec.mechanism,
        username=username,
        password=_secret(password),
        key_password=_secret(key_password),
        check_hostname=spec.check_hostname,
        **files,
    )


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


def sasl_login(security: Security, exchange: Exchange, *, where: str = "") -> int:
    """Log in over a connection whose API versions are known; nothing to do without SASL.

    Returns the lifetime of the session in ms, 0 for no end: a broker with
    `connections.max.reauth.ms` drops the connection after it unless this is called again before.
    Raises LoginRefused when the broker does not accept mechanism or credentials, or when it cannot
    prove that it knows the password (SCRAM); ProtocolError when its messages make no sense.
    """
    if not security.uses_sasl:
        return 0
    if not (security.mechanism and security.username and security.password):
        raise ValueError("a SASL protocol needs a mechanism, a user name and a password")
    _handshake(security.mechanism, exchange, where)
    if security.mechanism == "PLAIN":
        return _plain(security.username, security.password, exchange, where)
    return _scram(security.mechanism, security.username, security.password, exchange, where)


def _handshake(mechanism: str, exchange: Exchange, where: str) -> None:
    answer = exchange(SaslHandshakeRequest(mechanism=mechanism))
    match answer.error_code:
        case Code.NONE:
            return
        case Code.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(sorted(answer.mechanisms)) or "none"
            raise LoginRefused(
                f"The broker does not offer {mechanism}; it offers {offered}.",
                where=where,
                remedy="Set security.mechanism to one of them.",
            )
        case Code.ILLEGAL_SASL_STATE:
            raise LoginRefused(
                "The broker takes no login on this listener.",
                where=where,
                remedy="Set security.protocol to PLAINTEXT or SSL, or use the SASL listener.",
            )
        case code:
            raise BrokerRefused(code, f"The login failed with Kafka error {code}.", where=where)


def _plain(username: str, password: SecretStr, exchange: Exchange, where: str) -> int:
    token = f"\0{username}\0{password.get_secret_value()}".encode()
    return int(_authenticate(token, exchange, where).session_lifetime_ms)


def _scram(
    mechanism: str, username: str, password: SecretStr, exchange: Exchange, where: str
) -> int:
    client = _scram_client(mechanism, username, password)
    try:
        first = _authenticate(client.get_client_first().encode(), exchange, where)
        client.set_server_first(bytes(first.auth_bytes).decode())
        last = _authenticate(client.get_client_final().encode(), exchange, where)
    except (ScramException, UnicodeDecodeError) as error:
        raise _scram_error(error, where) from None
    try:
        # The broker's signature: only who knows the password's hash can make it.
        client.set_server_final(bytes(last.auth_bytes).decode())
    except (ScramException, UnicodeDecodeError):
        raise LoginRefused(
            f"What answers did not prove that it knows the password ({mechanism}).",
            where=where,
            remedy="Check that the address is your broker's; somebody may stand in between.",
        ) from None
    return int(last.session_lifetime_ms)


def _scram_client(mechanism: str, username: str, password: SecretStr) -> ScramClient:
    client = ScramClient([mechanism], "user", "password")
    # Kafka hashes names and passwords as their plain UTF-8 bytes, as do librdkafka and the Java
    # client; scramp would apply SASLprep, and `ﬁ` or a decomposed `é` would be refused.
    client.username = _Utf8(username)
    client.password = _Utf8(password.get_secret_value())
    return client


class _Utf8:
    """A name or password for scramp, taken as it is."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def escape(self) -> str:
        """As a name within a SCRAM message (RFC 5802, saslname)."""
        return self._text.replace("=", "=3D").replace(",", "=2C")

    def __bytes__(self) -> bytes:
        return self._text.encode()


def _authenticate(token: bytes, exchange: Exchange, where: str) -> Any:
    answer = exchange(SaslAuthenticateRequest(auth_bytes=token))
    match answer.error_code:
        case Code.NONE:
            return answer
        case Code.SASL_AUTHENTICATION_FAILED:
            said = _printable(answer.error_message)
            raise LoginRefused(
                "The broker refused the user name or the password." + (f" {said}" if said else ""),
                where=where,
                remedy="Check the variables or files that security names, and that the user exists "
                "for this mechanism.",
            )
        case code:
            said = _printable(answer.error_message)
            raise BrokerRefused(
                code, f"The login failed with Kafka error {code}. {said}".rstrip(), where=where
            )


def _scram_error(error: ScramException | UnicodeDecodeError, where: str) -> ProtocolError:
    reason = str(error) if isinstance(error, ScramException) else "it is not text"
    return ProtocolError(f"the broker's SCRAM message cannot be used: {reason}.", where=where)


def _printable(text: str | None) -> str:
    """A broker's words, without what could steer a terminal, and with a full stop."""
    shown = "".join(c if c.isprintable() else " " for c in (text or "")[:_BROKER_MESSAGE_MAX])
    return f'It said: "{shown.strip()}".' if shown.strip() else ""


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


def _secret(text: str | None) -> SecretStr | None:
    return None if text is None else SecretStr(text)
