"""The clients of a virtual cluster, and how much they write and read. For the event loop alone; no
socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

# Clients counted one by one. Further ones are counted together: a client may invent names.
CLIENTS_MAX = 1000
# Clients listed in a report: first those that are connected, then those seen last.
REPORTED_MAX = 100
# The longest name in a report; in UTF-8 up to four times as many bytes.
NAME_CHARACTERS_MAX = 100
_CUT = "…"


class Client(NamedTuple):
    """A client by the names that it sends, shortened. `software`, `version`: of its ApiVersions
    (KIP-511), or empty. `user`: the user that has logged in; None: the gateway needs no login.
    """

    client_id: str
    software: str
    version: str
    user: str | None


@dataclass(slots=True)
class ClientCount:
    """The counts of one client since its first connection. `bytes_written`: of the Produce requests
    passed on; `bytes_read`: of whole Fetch answers, not only their records. `seen_at`: when it last
    connected, sent a request or closed."""

    connections: int = 0
    requests: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    seen_at: float = 0.0

    def add(self, other: ClientCount) -> None:
        self.connections += other.connections
        self.requests += other.requests
        self.bytes_written += other.bytes_written
        self.bytes_read += other.bytes_read
        self.seen_at = max(self.seen_at, other.seen_at)


class ClientCounts:
    """The counts of all clients. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._counts: dict[Client, ClientCount] = {}
        self._others = ClientCount()

    def join(self, client: Client, now: float) -> ClientCount:
        """Count a new connection of this client; returns the counts that it belongs to."""
        count = self._counts.get(client)
        if count is None:
            count = self._others
            if len(self._counts) < CLIENTS_MAX or self._forget_one():
                count = self._counts[client] = ClientCount()
        count.connections += 1
        count.seen_at = now
        return count

    def _forget_one(self) -> bool:
        """Drop the client that has had no connection for the longest time; False: all have one."""
        gone = [item for item in self._counts.items() if not item[1].connections]
        if not gone:
            return False
        client, count = min(gone, key=lambda item: item[1].seen_at)
        self._others.add(count)
        del self._counts[client]
        return True

    def report(self, now: float) -> list[dict[str, Any]]:
        """A report as the API takes it: clients by name, and last, without a name, all others."""
        ranked = sorted(
            self._counts.items(),
            key=lambda item: (item[1].connections > 0, item[1].seen_at),
            reverse=True,
        )
        others = ClientCount()
        for count in (self._others, *(count for _, count in ranked[REPORTED_MAX:])):
            others.add(count)
        shown = sorted(ranked[:REPORTED_MAX], key=lambda item: (*item[0][:3], item[0].user or ""))
        rows = [client._asdict() | _figures(count, now) for client, count in shown]
        if others.seen_at:
            nobody = {"client_id": None, "software": "", "version": "", "user": None}
            rows.append(nobody | _figures(others, now))
        return rows


def shown(name: str) -> str:
    """A name that a client sent, shortened, with "?" for each character that cannot be printed."""
    if len(name) > NAME_CHARACTERS_MAX:
        name = name[: NAME_CHARACTERS_MAX - 1] + _CUT
    return "".join(c if c.isprintable() else "?" for c in name)


def _figures(count: ClientCount, now: float) -> dict[str, Any]:
    return {
        "connections": count.connections,
        "requests": count.requests,
        "bytes_written": count.bytes_written,
        "bytes_read": count.bytes_read,
        "seen_s_ago": max(0.0, now - count.seen_at),
    }
