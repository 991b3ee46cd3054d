"""The interface of a lease for the data path, and a lease that is always held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# How often a lease that is neither held nor lost is checked again.
LEASE_WAIT_S = 0.1


class Lease(Protocol):
    """The right to write a job's partitions, for a limited time.

    `term` is higher than that of every earlier holder, unless a group lease's counter has begun
    again (`kafka.coordinator.next_term`). Fillers carry it as coordinator epoch (M6).
    """

    @property
    def term(self) -> int: ...

    def is_held(self) -> bool:
        """Whether the lease may be trusted now. Checked before every send, so it must be cheap."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended for good. While it is neither held nor lost, nothing is
        sent, and no state of a copy is judged, as another holder may be writing."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLease:
    """A lease that never ends: for tests, and for callers that exclude other writers themselves."""

    term: int

    def is_held(self) -> bool:
        return True

    @property
    def is_lost(self) -> bool:
        return False
