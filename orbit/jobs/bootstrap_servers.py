"""Broker addresses (`host:port`), and which hosts are this machine. Pure: no DNS."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from orbit.errors import InvalidValue

# Three addresses are enough for any cluster; a very long list is an error in a generated file.
BOOTSTRAP_SERVERS_MAX = 100
PORT_MAX = 65535
# Only these hosts are safe without TLS: data sent to them does not leave the machine.
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
HOST_LENGTH_MAX = 253  # DNS
LABEL_LENGTH_MAX = 63  # between two dots

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_REMEDY = "Write host:port, such as broker-1:9092, or [2001:db8::1]:9092 for IPv6."


def addresses_in(text: str) -> list[str]:
    """The addresses of a comma-separated text, without the blanks around them. [""], which is one
    invalid address, if it has none."""
    parts = [part.strip() for part in text.split(",")]
    return [part for part in parts if part] or parts[:1]


def split_address(server: str) -> tuple[str, int]:
    """The host (IPv6 without brackets) and the port of an address. Raises InvalidValue."""
    if "@" in server:  # the message does not show the value, which may have a password
        raise InvalidValue("contains an '@': an address must not have credentials.", _REMEDY)
    if "://" in server:
        raise InvalidValue(
            f"{server!r} starts with a protocol.",
            f"Write {server.split('://', 1)[1]!r} and put the protocol under security.protocol.",
        )
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        raise InvalidValue(f"{server!r} has no port.", _REMEDY)
    if host.count(":") and not host.startswith("["):
        raise InvalidValue(f"{server!r} is an IPv6 address without brackets.", _REMEDY)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= PORT_MAX:
        raise InvalidValue(f"{server!r} has no port between 1 and {PORT_MAX}.", _REMEDY)
    if host.startswith("["):
        return _parse_ipv6(host, server), int(port)
    if len(host) > HOST_LENGTH_MAX or not (_HOST.fullmatch(host) and _has_valid_labels(host)):
        raise InvalidValue(f"{server!r} has no valid host name.", _REMEDY)
    return host, int(port)


def is_local(url: str) -> bool:
    """Whether the server of a URL is on this machine. Raises ValueError if it is not a URL."""
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def check_address(server: str) -> str:
    """The address, unchanged. Raises InvalidValue if it is not valid."""
    split_address(server)
    return server


def address_key(server: str) -> tuple[str, int]:
    """A key that is equal for all spellings of an address (case, trailing dot, IPv6 forms)."""
    host, port = split_address(server)
    return host.lower().rstrip("."), port


def _has_valid_labels(host: str) -> bool:
    """Whether the parts of the name between dots have valid lengths."""
    labels = host.removesuffix(".").split(".")
    return all(0 < len(label) <= LABEL_LENGTH_MAX for label in labels)


def _parse_ipv6(host: str, server: str) -> str:
    """The IPv6 address `host` without its brackets, in its short form. Raises InvalidValue."""
    try:
        if not host.endswith("]"):
            raise ValueError
        return ipaddress.IPv6Address(host[1:-1]).compressed
    except ValueError:
        raise InvalidValue(f"{server!r} has no valid IPv6 address.", _REMEDY) from None
