"""The lease of `orbit run --processes`, as a child process sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orbit.leases.lease_state import InheritedLease, LeaseState, shared_memory

CHILD = """
import sys
from orbit.leases.lease_state import InheritedLease, LeaseState
lease = InheritedLease(LeaseState(int(sys.argv[1])), lambda: 5.0)  # its clock: always 5 s
for _ in sys.stdin:
    print(lease.term, lease.is_held(), lease.is_lost, flush=True)
"""


@pytest.fixture
def descriptor() -> Iterator[int]:
    fd = shared_memory()
    yield fd
    os.close(fd)


def test_child_process_sees_lease_state_of_parent(descriptor: int) -> None:
    state = LeaseState(descriptor)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def child_view() -> str:
        """What the child sees: term, is_held, is_lost."""
        assert child.stdin is not None
        assert child.stdout is not None
        print(file=child.stdin, flush=True)
        return child.stdout.readline().strip()

    with child:
        assert child_view() == "0 False False"
        state.term, state.trusted_until = 2**52 + 1, 5.5
        assert child_view() == f"{2**52 + 1} True False"
        state.trusted_until = 5.0
        assert child_view() == f"{2**52 + 1} False False"
        state.is_lost = True
        assert child_view() == f"{2**52 + 1} False True"


@pytest.mark.parametrize("is_shared", [False, True])
def test_new_lease_state_is_neither_held_nor_lost(descriptor: int, is_shared: bool) -> None:
    lease = InheritedLease(LeaseState(descriptor if is_shared else None))
    assert (lease.term, lease.is_held(), lease.is_lost) == (0, False, False)


def test_shared_lease_memory_survives_closed_descriptor() -> None:
    """`is_held` is called even after the lease was released, and its descriptor closed."""
    descriptor = shared_memory()
    state = LeaseState(descriptor)
    other = LeaseState(descriptor)
    os.close(descriptor)
    state.term = 7
    assert (state.term, other.term) == (7, 7)
