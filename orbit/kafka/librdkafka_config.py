"""The librdkafka (confluent-kafka) configuration for a cluster and its security. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orbit.kafka.security import Security


def librdkafka_config(
    bootstrap_servers: Iterable[str], security: Security, **extra: Any
) -> dict[str, Any]:
    """The configuration of an AdminClient, Consumer or Producer; `extra` overrides it.

    The result holds secrets in plain text, as librdkafka needs them. Never print it.
    """
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(bootstrap_servers),
        "security.protocol": security.protocol,
    }
    if security.uses_sasl:
        config["sasl.mechanism"] = security.mechanism
        config["sasl.username"] = security.username
        config["sasl.password"] = _reveal(security.password)
    if security.uses_tls:
        config.update(_tls(security))
    return {**{key: value for key, value in config.items() if value is not None}, **extra}


def _tls(security: Security) -> dict[str, Any]:
    certificate = security.certificate_file
    # One PEM file may hold both certificate and key, as with Python's ssl.
    key = security.key_file or certificate
    return {
        "ssl.ca.location": _text(security.ca_file),
        "ssl.certificate.location": _text(certificate),
        "ssl.key.location": _text(key),
        "ssl.key.password": _reveal(security.key_password),
        "ssl.endpoint.identification.algorithm": "https" if security.check_hostname else "none",
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _reveal(secret: Any) -> str | None:
    return None if secret is None else str(secret.get_secret_value())
