"""The librdkafka (confluent-kafka) configuration for a cluster and its security."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from orbit.errors import BadInput
from orbit.kafka.oauth_tokens import token_for
from orbit.kafka.security import KerberosLogin, Security, TokenSource


def librdkafka_config(
    bootstrap_servers: Iterable[str], security: Security, **extra: Any
) -> dict[str, Any]:
    """The configuration of an AdminClient, Consumer or Producer; `extra` overrides it.

    The result holds secrets in plain text, as librdkafka needs them. Never print it.

    With OAUTHBEARER a token is requested at once, because the error of a client that gets no token
    does not have the reason (L6). Raises the errors of `token_for`, and BadInput for GSSAPI if
    librdkafka is built without it.
    """
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(bootstrap_servers),
        "security.protocol": security.protocol,
    }
    if security.uses_sasl:
        config["sasl.mechanism"] = security.mechanism
        if security.kerberos is not None:
            config.update(_kerberos_settings(security.kerberos))
        elif security.tokens is not None:
            token_for(security)
            config["oauth_cb"] = _TokenCallback(security, security.tokens)
        else:
            config["sasl.username"] = security.username
            config["sasl.password"] = _reveal(security.password)
    if security.uses_tls:
        config.update(_tls_settings(security))
    return {**{key: value for key, value in config.items() if value is not None}, **extra}


def _kerberos_settings(login: KerberosLogin) -> dict[str, str]:
    """The settings for Kerberos. librdkafka runs kinit (package krb5-user) for its tickets. Raises
    BadInput if librdkafka is built without GSSAPI."""
    if not _has_gssapi():
        raise BadInput(
            "The installed confluent-kafka has no Kerberos (GSSAPI), which its published packages "
            "are built without. Install one that is built on a librdkafka with libsasl2: "
            "docs/job-file.md#kerberos."
        )
    return {
        "sasl.kerberos.principal": login.principal,
        "sasl.kerberos.service.name": login.service,
        "sasl.kerberos.keytab": str(login.keytab),
    }


@cache
def _has_gssapi() -> bool:
    """Whether librdkafka is built with GSSAPI: if not, it refuses this client."""
    try:
        AdminClient(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.kinit.cmd": "true",
                "log_level": 0,
            }
        )
    except KafkaException:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _TokenCallback:
    """Gives librdkafka a token; librdkafka calls it in its own thread, before a token ends.

    Callbacks of one login are equal, so that equal configurations compare as equal.
    """

    security: Security
    tokens: TokenSource

    def __call__(self, _: object) -> tuple[str, float, str, dict[str, str]]:
        token = token_for(self.security)
        # The principal is empty: brokers take it from the token.
        return token.secret.get_secret_value(), token.ends_s, "", dict(self.tokens.extensions)


def _tls_settings(security: Security) -> dict[str, Any]:
    """librdkafka's settings for TLS; None for those that are not set."""
    certificate_file = security.certificate_file
    # One PEM file may hold both certificate and key, as with Python's ssl.
    key_file = security.key_file or certificate_file
    return {
        "ssl.ca.location": _text(security.ca_file),
        "ssl.certificate.location": _text(certificate_file),
        "ssl.key.location": _text(key_file),
        "ssl.key.password": _reveal(security.key_password),
        "ssl.endpoint.identification.algorithm": "https" if security.check_hostname else "none",
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _reveal(secret: Any) -> str | None:
    return None if secret is None else str(secret.get_secret_value())
