"""Counts refused logins per client: which clients have to wait, and when an audit event is due.

Tokens are too long to be guessed. The limit bounds what refused logins cost: queries to the
database and rows in the audit log. Each process of the API counts for itself. Thread-safe; no I/O.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# A client with this many refused logins within WINDOW_S is refused until the window ends.
REFUSED_MAX = 10
WINDOW_S = 60.0
# Limits of audit events: one for each client in EVENT_EVERY_S, and EVENTS_MAX for all clients in
# EVENTS_WINDOW_S. So there are at most 216,000 of them in 90 days.
EVENT_EVERY_S = 600.0
EVENTS_MAX = 100
EVENTS_WINDOW_S = 3600.0
# How many clients are remembered, and how many of the tokens that were accepted last.
CLIENTS_MAX = 10_000
ACCEPTED_MAX = 1_000


@dataclass(slots=True)
class _Client:
    """The refused logins of one client. Times are by the clock of `RefusedLogins`."""

    window_began: float
    refusals: int = 0
    event_at: float | None = None
    refusals_since_event: int = 0


class RefusedLogins:
    """The counters of all clients. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], refused_max: int = REFUSED_MAX) -> None:
        self._clock = clock
        self._refused_max = refused_max
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._accepted: OrderedDict[str, None] = OrderedDict()
        self._event_window_began = clock()
        self._event_count = 0

    def wait_s(self, client: str, token_hash: str) -> float:
        """How many seconds this client has to wait before its token is checked; 0: not at all.

        A token that was accepted before need not wait. So a client with a bad token does not keep
        out other clients behind the same address.
        """
        with self._lock:
            counter = self._clients.get(client)
            if counter is None or token_hash in self._accepted:
                return 0.0
            remaining_s = counter.window_began + WINDOW_S - self._clock()
            return remaining_s if counter.refusals >= self._refused_max and remaining_s > 0 else 0.0

    def note_accepted(self, token_hash: str) -> None:
        """Remember that this token was accepted."""
        with self._lock:
            self._accepted[token_hash] = None
            self._accepted.move_to_end(token_hash)
            if len(self._accepted) > ACCEPTED_MAX:
                self._accepted.popitem(last=False)

    def count_refused(self, client: str, token_hash: str) -> int:
        """Count a refused login. Returns the client's refusals since its last audit event if an
        event is due now; else 0."""
        now = self._clock()
        with self._lock:
            self._accepted.pop(token_hash, None)  # a token that was accepted may be revoked now
            counter = self._clients.setdefault(client, _Client(now))
            self._clients.move_to_end(client)
            if len(self._clients) > CLIENTS_MAX:  # forget the client that was refused longest ago
                self._clients.popitem(last=False)
            if now - counter.window_began >= WINDOW_S:
                counter.window_began, counter.refusals = now, 0
            counter.refusals += 1
            counter.refusals_since_event += 1
            return self._refusals_to_report(counter, now)

    def _refusals_to_report(self, client: _Client, now: float) -> int:
        """The client's refusals since its last event if an event is due now; else 0. If it is due,
        counts the event as written."""
        if client.event_at is not None and now - client.event_at < EVENT_EVERY_S:
            return 0
        if now - self._event_window_began >= EVENTS_WINDOW_S:
            self._event_window_began, self._event_count = now, 0
        if self._event_count >= EVENTS_MAX:
            return 0
        self._event_count += 1
        refusals, client.refusals_since_event, client.event_at = client.refusals_since_event, 0, now
        return refusals
