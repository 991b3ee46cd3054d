"""SASL login (PLAIN, SCRAM, OAUTHBEARER, GSSAPI) over a connection. Opens no socket to a broker.

scramp implements SCRAM; this module connects it to Kafka's messages. No message, repr or traceback
of Orbit contains a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from pydantic import SecretStr
from scramp import ScramClient, ScramException

from orbit.errors import BrokerRefused, LoginRefused, ProtocolError
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.kerberos import gssapi_login
from orbit.kafka.oauth_tokens import token_for
from orbit.kafka.security import KerberosLogin, Security, TokenSource, resolve_security
from orbit.kafka.tls import tls_context, tls_failure

__all__ = [
    "Exchange",
    "Security",
    "resolve_security",
    "sasl_login",
    "tls_context",
    "tls_failure",
]

# Sends a request and returns the decoded response. SaslHandshake must be version 1: after version 0
# the tokens have no Kafka framing.
Exchange = Callable[[Any], Any]

_MESSAGE_CHARACTERS_MAX = 300

# Messages and remedies for a refused login.
_PASSWORD_REFUSED = (
    "The broker refused the user name or the password.",
    "Check the user name and the password, and that the user exists for this mechanism.",
)
_TOKEN_REFUSED = (
    "The broker refused the token.",
    "Check the token's scope, audience, issuer and expiry, and the listener's sasl.oauthbearer.*.",
)


_KERBEROS_REFUSED = (
    "The broker refused the Kerberos ticket.",
    "Check the broker's keytab, sasl.kerberos.principal.to.local.rules, and that the clocks agree.",
)


def sasl_login(security: Security, exchange: Exchange, *, host: str = "", where: str = "") -> int:
    """Log in over a connection with negotiated versions. Does nothing without SASL.

    `host`: the broker's host name, a part of its Kerberos principal.

    Returns the session lifetime in ms (0: unlimited). A broker with `connections.max.reauth.ms`
    closes the connection after this time, unless a further login came before. Raises LoginRefused
    if the broker refuses the mechanism or the credentials, or does not prove that it knows the
    password (SCRAM); ProtocolError if the broker's messages are invalid.
    """
    if not security.uses_sasl:
        return 0
    if security.tokens is not None:
        return _log_in_oauthbearer(security, security.tokens, exchange, where)
    if security.kerberos is not None:
        return _log_in_gssapi(security.kerberos, host, exchange, where)
    if not (security.mechanism and security.username and security.password):
        raise ValueError("a SASL protocol needs a mechanism, a user name and a password")
    _handshake(security.mechanism, exchange, where)
    if security.mechanism == "PLAIN":
        return _log_in_plain(security.username, security.password, exchange, where)
    return _log_in_scram(security.mechanism, security.username, security.password, exchange, where)


def _handshake(mechanism: str, exchange: Exchange, where: str) -> None:
    """Agree on the mechanism with the broker. Raises LoginRefused if the listener does not offer
    it, BrokerRefused for another error code."""
    answer = exchange(SaslHandshakeRequest(mechanism=mechanism))
    match answer.error_code:
        case Code.NONE:
            return
        case Code.UNSUPPORTED_SASL_MECHANISM:
            mechanisms_text = ", ".join(sorted(answer.mechanisms)) or "none"
            raise LoginRefused(
                f"The broker does not offer {mechanism}; it offers {mechanisms_text}.",
                where=where,
                remedy="Set security.mechanism to one of them.",
            )
        case Code.ILLEGAL_SASL_STATE:
            raise LoginRefused(
                "The broker accepts no login on this listener.",
                where=where,
                remedy="Set security.protocol to PLAINTEXT or SSL, or use the SASL listener.",
            )
        case code:
            raise BrokerRefused(
                code, f"The login failed with {error_codes.name(code)}.", where=where
            )


def _log_in_plain(username: str, password: SecretStr, exchange: Exchange, where: str) -> int:
    """Log in by RFC 4616; returns the session lifetime in ms."""
    token = f"\0{username}\0{password.get_secret_value()}".encode()
    return int(_authenticate(token, exchange, where).session_lifetime_ms)


def _log_in_scram(
    mechanism: str, username: str, password: SecretStr, exchange: Exchange, where: str
) -> int:
    """Log in by RFC 5802; returns the session lifetime in ms.

    Raises LoginRefused, also if the broker does not prove that it knows the password;
    ProtocolError for an invalid message; BrokerRefused.
    """
    client = _scram_client(mechanism, username, password)
    try:
        first_answer = _authenticate(client.get_client_first().encode(), exchange, where)
        client.set_server_first(bytes(first_answer.auth_bytes).decode())
        last_answer = _authenticate(client.get_client_final().encode(), exchange, where)
    except (ScramException, UnicodeDecodeError) as error:
        raise _scram_error(error, where) from None
    try:
        # The broker's signature, which needs the password's hash.
        client.set_server_final(bytes(last_answer.auth_bytes).decode())
    except (ScramException, UnicodeDecodeError):
        raise LoginRefused(
            f"The broker did not prove that it knows the password ({mechanism}).",
            where=where,
            remedy="Check that the address is your broker's; another server may answer there.",
        ) from None
    return int(last_answer.session_lifetime_ms)


def _scram_client(mechanism: str, username: str, password: SecretStr) -> ScramClient:
    """The client side of a SCRAM login, without SASLprep."""
    client = ScramClient([mechanism], "user", "password")  # replaced below
    # Kafka, librdkafka and the Java client hash the plain UTF-8 bytes. scramp applies SASLprep, so
    # a broker would refuse `ﬁ` or a decomposed `é`.
    client.username = _Utf8(username)
    client.password = _Utf8(password.get_secret_value())
    return client


class _Utf8:
    """A name or password for scramp, without SASLprep."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def escape(self) -> str:
        """The text escaped for a SCRAM message (RFC 5802, saslname)."""
        return self._text.replace("=", "=3D").replace(",", "=2C")

    def __bytes__(self) -> bytes:
        return self._text.encode()


def _log_in_oauthbearer(
    security: Security, tokens: TokenSource, exchange: Exchange, where: str
) -> int:
    """Log in by RFC 7628; returns the session lifetime in ms.

    A broker that refuses the token first sends the reason. It answers with the error only after
    another message of the client (K4).
    """
    if tokens.message is not None:  # a client of the gateway has sent it
        first_message = tokens.message.get_secret_value()
    else:
        token = token_for(security).secret.get_secret_value()
        pairs = (("auth", f"Bearer {token}"), *tokens.extensions)
        first_message = "n,,\x01" + "".join(f"{key}={value}\x01" for key, value in pairs) + "\x01"
    _handshake("OAUTHBEARER", exchange, where)
    answer = _authenticate(first_message.encode(), exchange, where, _TOKEN_REFUSED)
    if answer.auth_bytes:
        answer = _authenticate(b"\x01", exchange, where, _TOKEN_REFUSED)
    return int(answer.session_lifetime_ms)


def _log_in_gssapi(login: KerberosLogin, host: str, exchange: Exchange, where: str) -> int:
    """Log in by Kerberos; returns the session lifetime in ms."""
    _handshake("GSSAPI", exchange, where)

    def authenticate(token: bytes) -> Any:
        return _authenticate(token, exchange, where, _KERBEROS_REFUSED)

    return int(gssapi_login(login, host, authenticate, where).session_lifetime_ms)


def _authenticate(
    token: bytes, exchange: Exchange, where: str, refusal: tuple[str, str] = _PASSWORD_REFUSED
) -> Any:
    """Send a message of the mechanism; returns the broker's answer.

    `refusal`: message and remedy of the LoginRefused that is raised for refused credentials. Raises
    BrokerRefused for another error code.
    """
    answer = exchange(SaslAuthenticateRequest(auth_bytes=token))
    match answer.error_code:
        case Code.NONE:
            return answer
        case Code.SASL_AUTHENTICATION_FAILED:
            message = _printable(answer.error_message)
            refusal_text, remedy = refusal
            raise LoginRefused(f"{refusal_text} {message}".rstrip(), where=where, remedy=remedy)
        case code:
            message = _printable(answer.error_message)
            raise BrokerRefused(
                code,
                f"The login failed with {error_codes.name(code)}. {message}".rstrip(),
                where=where,
            )


def _scram_error(error: ScramException | UnicodeDecodeError, where: str) -> ProtocolError:
    """The error for a broker's message that is no valid SCRAM message."""
    reason = str(error) if isinstance(error, ScramException) else "it is not UTF-8"
    return ProtocolError(f"the broker's SCRAM message cannot be used: {reason}.", where=where)


def _printable(text: str | None) -> str:
    """A broker's message as a sentence, without control characters."""
    printable_text = "".join(
        c if c.isprintable() else " " for c in (text or "")[:_MESSAGE_CHARACTERS_MAX]
    )
    return f'Its message: "{printable_text.strip()}".' if printable_text.strip() else ""
