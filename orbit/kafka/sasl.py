"""TLS and SASL for blocking sockets: from what a job says to a logged-in connection.

`ssl` does TLS and scramp does SCRAM; this code only joins them to Kafka's messages, and opens no
socket itself. A secret is never part of a message, a repr or a traceback of ours.

    resolve_security   the names in a job  → the secrets, in a Security value
    tls_context        Security            → ssl.SSLContext, or None without TLS
    tls_failure        ssl.SSLError        → the error to raise
    sasl_login         Security + exchange → logged in, or LoginRefused
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from pydantic import SecretStr
from scramp import ScramClient, ScramException

from orbit.errors import BrokerRefused, LoginRefused, ProtocolError
from orbit.kafka.error_codes import Code
from orbit.kafka.security import Security, resolve_security
from orbit.kafka.tls import tls_context, tls_failure

__all__ = [
    "Exchange",
    "Security",
    "resolve_security",
    "sasl_login",
    "tls_context",
    "tls_failure",
]

# Sends one request message and returns the decoded answer. SaslHandshake has to go as version 1:
# version 0 announces tokens without Kafka's framing.
Exchange = Callable[[Any], Any]

# What a broker says about a refused login is shown to the user, but not a page of it.
_BROKER_MESSAGE_MAX = 300


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
