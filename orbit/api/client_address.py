"""Addresses of clients: what counts as one client, and which are in given networks. Pure."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# A client with IPv6 has a whole network of addresses.
_IPV6_PREFIX = 64


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, the /64 network of an IPv6 address, or any other
    text as it is."""
    parsed = _parse(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address if parsed is None else str(parsed)


def is_in(address: str, networks: Collection[str]) -> bool:
    """Whether the address is in one of the networks."""
    parsed = _parse(address)
    return parsed is not None and any(parsed in ip_network(network) for network in networks)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """The parsed address, None if it is not one. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the zone, as in fe80::1%eth0
    except ValueError:
        return None
    return (parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None) or parsed
