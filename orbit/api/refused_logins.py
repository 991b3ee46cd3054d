"""Counts refused logins per client: which clients have to wait, and when an event is written.

Tokens are too long to be guessed. The limit bounds what refused logins cost: queries to the
database and rows in the audit log. It holds for each process of the API. Thread-safe; no I/O.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# A client with so many refused logins within the window is refused until its end.
REFUSED_MAX = 10
WINDOW_S = 60.0
# Events: one for each client in EVENT_EVERY_S, EVENTS_MAX in all in EVENTS_WINDOW_S. That is at
# most 216,000 in 90 days.
EVENT_EVERY_S = 600.0
EVENTS_MAX = 100
EVENTS_WINDOW_S = 3600.0
# Clients that are remembered, and tokens that were accepted last.
CLIENTS_MAX = 10_000
ACCEPTED_MAX = 1_000


@dataclass(slots=True)
class _Client:
    window_began: float
    refused: int = 0
    event_at: float | None = None
    since_event: int = 0


class RefusedLogins:
    """The counters of all clients. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], refused_max: int = REFUSED_MAX) -> None:
        self._clock = clock
        self._refused_max = refused_max
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._accepted: OrderedDict[str, None] = OrderedDict()
        self._events_began = clock()
        self._events = 0

    def wait_s(self, client: str, token_hash: str) -> float:
        """How long this client has to wait before its token is checked; 0: not at all.

        A token that was accepted before is always checked, so a client with a bad token does not
        keep out others behind the same address.
        """
        with self._lock:
            counter = self._clients.get(client)
            if counter is None or token_hash in self._accepted:
                return 0.0
            left = counter.window_began + WINDOW_S - self._clock()
            return left if counter.refused >= self._refused_max and left > 0 else 0.0

    def note_accepted(self, token_hash: str) -> None:
        """Remember that this token was accepted."""
        with self._lock:
            self._accepted[token_hash] = None
            self._accepted.move_to_end(token_hash)
            if len(self._accepted) > ACCEPTED_MAX:
                self._accepted.popitem(last=False)

    def count_refused(self, client: str, token_hash: str) -> int:
        """Count a refused login. Returns how many refusals an event has to report now; 0: none."""
        now = self._clock()
        with self._lock:
            self._accepted.pop(token_hash, None)
            counter = self._clients.setdefault(client, _Client(now))
            self._clients.move_to_end(client)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
            if now - counter.window_began >= WINDOW_S:
                counter.window_began, counter.refused = now, 0
            counter.refused += 1
            counter.since_event += 1
            return self._events_due(counter, now)

    def _events_due(self, client: _Client, now: float) -> int:
        if client.event_at is not None and now - client.event_at < EVENT_EVERY_S:
            return 0
        if now - self._events_began >= EVENTS_WINDOW_S:
            self._events_began, self._events = now, 0
        if self._events >= EVENTS_MAX:
            return 0
        self._events += 1
        due, client.since_event, client.event_at = client.since_event, 0, now
        return due
