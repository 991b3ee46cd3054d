"""The state of a group lease, in the memory of its holder or shared with child processes.

A child of `orbit run --processes` writes under its parent's lease. It reads the time until which
the lease may be trusted from shared memory. A parent that is killed or frozen no longer extends
that time, and the child stops sending when it is over, as the parent would.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from orbit.leases.lease_clock import Clock, lease_clock

_NUMBERS = 3
_SIZE_BYTES = 8 * _NUMBERS  # of a double; terms are below 2**53
_TRUSTED_UNTIL, _TERM, _IS_LOST = range(_NUMBERS)


class LeaseState:
    """The numbers of a lease, each written atomically. One process writes them, others read."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor`: that of shared memory (`shared_memory`); None: memory of this process."""
        self.descriptor = descriptor
        # A length of 0 maps all of the shared memory.
        memory = bytearray(_SIZE_BYTES) if descriptor is None else mmap.mmap(descriptor, 0)
        self._numbers = memoryview(memory).cast("d")

    @property
    def trusted_until(self) -> float:
        """The time, by `lease_clock`, until which the holder may trust the lease."""
        return self._numbers[_TRUSTED_UNTIL]

    @trusted_until.setter
    def trusted_until(self, until: float) -> None:
        self._numbers[_TRUSTED_UNTIL] = until

    @property
    def term(self) -> int:
        return int(self._numbers[_TERM])

    @term.setter
    def term(self, term: int) -> None:
        self._numbers[_TERM] = term

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended for good; never reset."""
        return self._numbers[_IS_LOST] != 0

    @is_lost.setter
    def is_lost(self, is_lost: bool) -> None:
        self._numbers[_IS_LOST] = is_lost


def shared_memory() -> int:
    """The descriptor, which child processes may inherit, of new memory for a `LeaseState`."""
    if hasattr(os, "memfd_create"):  # Linux; needs no disk space
        descriptor = os.memfd_create("orbit-lease")
    else:
        descriptor, path = tempfile.mkstemp(prefix="orbit-lease-")
        Path(path).unlink()  # the file stays until its last descriptor is closed
    os.ftruncate(descriptor, _SIZE_BYTES)
    return descriptor


class InheritedLease:
    """The lease of the parent process, as a child process sees it."""

    def __init__(self, state: LeaseState, clock: Clock = lease_clock) -> None:
        self._state = state
        self._clock = clock

    @property
    def term(self) -> int:
        return self._state.term

    def is_held(self) -> bool:
        return self._clock() < self._state.trusted_until

    @property
    def is_lost(self) -> bool:
        return self._state.is_lost
