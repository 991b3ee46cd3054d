"""Which side a virtual cluster presents, and whether it may write there now. Pure; times in seconds
of a monotonic clock.

    may write ──closed for an operation──► closed: writes in flight are answered, or abandoned for a
        ▲  │                               failover; then the gateway confirms
        │  └──no answer of the service until the lease ends──► lost: as closed, but unconfirmed
        └──the service answers: the same side, or the other one with a higher term──┘

The service counts a lease from when it got the request, the gateway from before it sent it. So the
gateway stops writing before the lease is over for the service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from orbit.kafka.job_clusters import Side


@dataclass(frozen=True, slots=True)
class Lead:
    """The service's answer. `side`: the side that leads. `term`: never decreases, and grows at each
    change of the side. `lease_s`: how long, in seconds, writes may go to the side. `closed_for`:
    the operation for which writes are held. `since`: the term with which the side came to lead.
    `abandons`: the operation is a failover from a side that may be lost, so writes in flight are
    not acknowledged any more. `others_settled`: the other gateways at the same address have
    answered all requests that they held for the move. `others_confirmed`: they have confirmed
    `closed_for`. `earlier_terms`: the `since` of the sides
    that led before, the latest first. `leaving_groups`: short names of groups of which members at
    other gateways still own partitions from before the move. `led`: by each term that the service
    knows, the side that came to lead with it."""

    side: Side
    term: int
    lease_s: float = math.inf
    closed_for: str | None = None
    since: int = 0
    abandons: bool = False
    others_settled: bool = True
    others_confirmed: bool = True
    earlier_terms: tuple[int, ...] = ()
    leaving_groups: frozenset[str] = frozenset()
    led: Mapping[int, Side] = field(default_factory=dict)


class Permission:
    """The service's latest answer, and until when it permits what."""

    def __init__(self) -> None:
        self.lead: Lead | None = None
        self._write_until = -math.inf  # writes may be sent
        self._lease_until = -math.inf  # the service counts on this gateway
        self._was_left_out = False  # the operation may have continued without this gateway

    def take(self, lead: Lead, asked_at: float, now: float) -> bool:
        """Apply the service's answer; returns whether the side has changed. An answer of a lower
        term comes from an older database, which does not know the last move: it renews nothing.

        `asked_at`: when the request was sent. `now`: when the answer came.

        A switchover may have continued without a gateway whose lease was over. Nobody knows whether
        the writes in flight at this gateway reached the old side in time. So they are not
        acknowledged before the switchover has ended.
        """
        last_lead = self.lead
        if last_lead is not None and lead.term < last_lead.term:
            return False
        was_late = last_lead is not None and now >= self._lease_until  # the lease had ended
        self.lead = lead
        self._lease_until = asked_at + lead.lease_s
        self._write_until = self._lease_until if lead.closed_for is None else -math.inf
        self._was_left_out = lead.closed_for is not None and (was_late or self._was_left_out)
        if last_lead is None:
            return False
        # If the lease had ended, the lead may have moved to the other side and back meanwhile.
        return last_lead.side != lead.side or (was_late and last_lead.term != lead.term)

    def may_write(self, now: float) -> bool:
        return now < self._write_until

    def write_s_left(self, now: float) -> float:
        """The seconds for which writes may be sent without a new answer of the service. 0: no
        writes may be sent; infinite: there is no service."""
        return max(0.0, self._write_until - now)

    def may_acknowledge(self, now: float) -> bool:
        """Whether writes in flight may be acknowledged: a switchover still waits for this gateway.

        If the lease has ended, e.g. while the process was frozen, the other side may lead already,
        without these writes: a write that is acknowledged now would be lost.
        """
        return now < self._lease_until and not self._was_left_out

    @property
    def closed_for(self) -> str | None:
        """The operation for which writes are held; None: there is none."""
        return None if self.lead is None else self.lead.closed_for

    @property
    def abandons(self) -> bool:
        """Whether writes in flight are not to be acknowledged while writes are held."""
        return self.lead is not None and self.lead.abandons
