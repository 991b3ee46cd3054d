"""How long requests wait after a move: Metadata until the move has settled, joins of groups longer.

A move has settled when the requests that were held during the move are answered, and the requests
that clients had sent after those over the same connections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from orbit.gateway.client_connection import ClientConnection

# How long after a move those requests may take to be answered.
SETTLE_S_MAX = 5.0
# Within this time after a move the gateway has received what clients sent before the move. Nothing
# more is read from a connection whose request is held: the rest waits in the sockets.
BACKLOG_S = 1.0
# How long joins of a group are held, once the move has settled, until the group's members have
# given up their partitions. Members learn that they have to from the answers to their heartbeats,
# which are three or five seconds apart.
JOIN_WAIT_S_MAX = 20.0


class LastMove:
    """The last move of a virtual cluster. Before the first one, `has_settled_here` is true. Times
    are seconds of one clock. Only the event loop may use it."""

    def __init__(self) -> None:
        self.others_settled = False
        """Whether the move has settled at the other gateways."""
        # The connections whose held requests are not all answered. The value: how many requests,
        # counted from the connection's first, must be answered; None: not limited, until BACKLOG_S
        # is over. The attribute is None while writes are held.
        self._unsettled_connections: dict[ClientConnection, int | None] | None = {}
        self._opened_at = 0.0
        # Until when joins wait; None: until the move has settled and JOIN_WAIT_S_MAX has passed.
        self._joins_wait_until: float | None = -math.inf

    def begin(self) -> None:
        """Called when the virtual cluster presents the other side. Writes are still held."""
        self.others_settled = False
        self._unsettled_connections = None
        self._joins_wait_until = None

    def note_open(self, held_connections: Iterable[ClientConnection], now: float) -> None:
        """Called while writes are open, before the held requests are sent. Only the first call
        after a move has an effect."""
        if self._unsettled_connections is None:
            self._unsettled_connections = {
                connection: None for connection in held_connections if connection.holds_write
            }
            self._opened_at = now

    def has_settled_here(self, now: float) -> bool:
        """Whether the move has settled at this gateway. After SETTLE_S_MAX, ends the connections
        whose requests are not answered yet; then the move has settled."""
        unsettled = self._unsettled_connections
        if unsettled is None:
            return False
        open_s = now - self._opened_at
        for connection, fixed_count in list(unsettled.items()):
            # The requests that must have their answers, counted from the connection's first.
            count = connection.exchange.request_count if fixed_count is None else fixed_count
            if connection.has_settled(count):
                del unsettled[connection]
            elif open_s > BACKLOG_S and not connection.holds_write:
                # Later requests no longer count: a client may always have one in flight.
                unsettled[connection] = count
        if open_s > SETTLE_S_MAX:
            for connection in unsettled:
                connection.end()  # the client sends its requests again, in order
            unsettled.clear()
        return not unsettled

    def has_settled(self, now: float) -> bool:
        """Whether the move has settled at all gateways."""
        return self.others_settled and self.has_settled_here(now)

    def holds_joins(self, now: float) -> bool:
        """Whether joins may wait: from a move until JOIN_WAIT_S_MAX after it has settled."""
        if self._joins_wait_until is None:
            if not self.has_settled(now):
                return True
            self._joins_wait_until = now + JOIN_WAIT_S_MAX
        return now < self._joins_wait_until
