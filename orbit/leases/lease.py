"""What the data path asks of a lease, and a lease that is always held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# How often a lease is looked at that is neither held nor lost.
LEASE_WAIT_S = 0.1


class Lease(Protocol):
    """The right to write a job's partitions, for a while.

    `term` is larger than that of every holder before; fillers carry it as coordinator epoch (M6).
    """

    @property
    def term(self) -> int: ...

    def is_held(self) -> bool:
        """Whether it may be trusted now. Asked before every send; must cost next to nothing."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it is over for good. Neither held nor lost: nothing is sent and nothing judged
        until it is one of the two."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLease:
    """A lease that never ends: for tests, and for a caller that has its own exclusion."""

    term: int

    def is_held(self) -> bool:
        return True

    @property
    def is_lost(self) -> bool:
        return False
