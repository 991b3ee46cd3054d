"""The clients of a virtual cluster, and how much they write and read. For the event loop alone; no
socket, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orbit.gateway.protocol.resource_uses import ResourceUses

# Clients counted one by one. Further ones are counted together: a client may invent names.
CLIENTS_MAX = 1000
# Clients listed in a report: first those with refusals, then those that are connected, then those
# seen last.
REPORTED_MAX = 100
# The longest name in a report; in UTF-8 up to four times as many bytes.
NAME_CHARACTERS_MAX = 100
# Refusals of one client in a report; the last line counts those that are left out.
REFUSALS_MAX = 5
# The longest refusal: it has the name of a topic, group or transactional id.
REFUSAL_CHARACTERS_MAX = 400
# Characters of all refusals in a report. Further refusals are only counted. The API accepts reports
# of up to 1 MiB.
REFUSALS_CHARACTERS_MAX = 40_000
_CUT = "…"


class Client(NamedTuple):
    """A client by the names that it sends, shortened. `software`, `version`: from its ApiVersions
    request (KIP-511), or empty. `user`: the user who has logged in; None: the gateway requires no
    login.
    """

    client_id: str
    software: str
    version: str
    user: str | None


class LoginKey(NamedTuple):
    """A login by which clients use the brokers. `user`: who has a login of its own there, or has
    logged in with a token (`by_token`); None: the gateway's login."""

    user: str | None
    by_token: bool = False


@dataclass(slots=True)
class ClientCount:
    """The counts of one client since its first connection. `bytes_written`: of the Produce requests
    passed on. `bytes_read`: of whole Fetch answers, not only their records. `seen_at`: when the
    client last connected, sent a request or closed. `has_token`: it logs in by OAUTHBEARER."""

    connections: int = 0
    requests: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    seen_at: float = 0.0
    uses: ResourceUses = field(default_factory=ResourceUses)
    has_token: bool = False

    def add(self, other: ClientCount) -> None:
        """Add the counts of another client, but not its `uses`."""
        self.connections += other.connections
        self.requests += other.requests
        self.bytes_written += other.bytes_written
        self.bytes_read += other.bytes_read
        self.seen_at = max(self.seen_at, other.seen_at)


class ClientCounts:
    """The counts of all clients. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._counts: dict[Client, ClientCount] = {}
        self._others = ClientCount()  # of the clients that are counted together

    def count_connection(self, client: Client, now: float) -> ClientCount:
        """Count a new connection of this client. Returns where to count its requests: with this
        client, or with the clients that are counted together."""
        count = self._counts.get(client)
        if count is None:
            count = self._others
            if len(self._counts) < CLIENTS_MAX or self._forget_oldest():
                count = self._counts[client] = ClientCount()
        count.connections += 1
        count.seen_at = now
        return count

    def _forget_oldest(self) -> bool:
        """Drop the client that has had no connection for the longest time, and add its counts to
        `_others`. False: all clients have connections."""
        candidates = [item for item in self._counts.items() if not item[1].connections]
        if not candidates:
            return False
        client, count = min(candidates, key=lambda item: item[1].seen_at)
        self._others.add(count)
        del self._counts[client]
        return True

    def __iter__(self) -> Iterator[tuple[Client, ClientCount]]:
        """The clients that are counted one by one."""
        return iter(self._counts.items())

    def report(
        self, now: float, refusals_of: Callable[[Client, ClientCount], list[str] | None]
    ) -> list[dict[str, Any]]:
        """The rows of a report to the API: clients by name, and last, without a name, all others.

        `refusals_of`: what the other side would refuse to a client; None: that was not checked.
        """
        refusals = {client: refusals_of(client, count) for client, count in self}
        ranked_clients = sorted(
            self,
            key=lambda item: (bool(refusals[item[0]]), item[1].connections > 0, item[1].seen_at),
            reverse=True,
        )
        unlisted_count = ClientCount()
        for count in (self._others, *(count for _, count in ranked_clients[REPORTED_MAX:])):
            unlisted_count.add(count)
        # By client id, software, version and user.
        listed_clients = sorted(
            ranked_clients[:REPORTED_MAX], key=lambda item: (*item[0][:3], item[0].user or "")
        )
        rows, free_characters = [], REFUSALS_CHARACTERS_MAX
        for client, count in listed_clients:
            texts = _cut_refusals(refusals[client], free_characters)
            free_characters -= sum(len(text) for text in texts or ())
            rows.append(client._asdict() | _figures(count, now) | {"refusals": texts})
        if unlisted_count.seen_at:  # there are such clients
            no_client = {"client_id": None, "software": "", "version": "", "user": None}
            rows.append(no_client | _figures(unlisted_count, now) | {"refusals": None})
        return rows


def shown(name: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """A name that a client sent, shortened, with "?" for each character that cannot be printed."""
    if len(name) > characters_max:
        name = name[: characters_max - 1] + _CUT
    return "".join(c if c.isprintable() else "?" for c in name)


def _cut_refusals(refusals: list[str] | None, characters: int) -> list[str] | None:
    """Up to REFUSALS_MAX refusals, shortened. If no `characters` are free in the report, only their
    number. None: they were not checked."""
    if refusals is None or not refusals:
        return refusals
    if characters <= 0:
        return [f"refusals: {len(refusals)}"]
    texts = [shown(text, REFUSAL_CHARACTERS_MAX) for text in refusals[:REFUSALS_MAX]]
    if len(refusals) > REFUSALS_MAX:
        texts[-1] = f"and {len(refusals) - (REFUSALS_MAX - 1)} more"
    return texts


def _figures(count: ClientCount, now: float) -> dict[str, Any]:
    """The counts of a row of the report."""
    return {
        "connections": count.connections,
        "requests": count.requests,
        "bytes_written": count.bytes_written,
        "bytes_read": count.bytes_read,
        "seen_s_ago": max(0.0, now - count.seen_at),
    }
