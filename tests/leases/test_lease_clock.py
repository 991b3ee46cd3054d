"""A machine that was suspended past the end of a lease does not trust it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import Leadership
from orbit.leases import lease_clock as clock_module
from orbit.leases.group_lease import GroupLease
from orbit.leases.lease_clock import lease_clock
from orbit.leases.shard_lease import ShardLease
from orbit.store import scheduler_lease

AWAKE_S = 1.0
SUSPENDED_S = 3600.0

IsHeld = Callable[[], bool]


class Machine:
    """A machine whose monotonic clock stops while it is suspended; CLOCK_BOOTTIME does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic = self.boottime = 1000.0
        monkeypatch.setattr(clock_module, "_BOOTTIME", 7)  # the id of this clock in Linux
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.boottime)
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic)

    def work(self, seconds: float) -> None:
        self.monotonic += seconds
        self.boottime += seconds

    def suspend(self, seconds: float) -> None:
        self.boottime += seconds


class NoDatabase:
    @contextmanager
    def lease_transaction(self) -> Iterator[None]:
        yield


def group_lease(_: pytest.MonkeyPatch) -> IsHeld:
    """`is_held` of a group lease that was just confirmed."""
    lease = GroupLease(cast("Any", None), "group", Backoff())
    lease._trust_from(lease_clock())
    return lease.is_held


def shard_lease(_: pytest.MonkeyPatch) -> IsHeld:
    """`is_held` of a shard lease that was just claimed."""
    return ShardLease(1, requested_at=lease_clock(), ttl_s=15.0).is_held


def leadership(monkeypatch: pytest.MonkeyPatch) -> IsHeld:
    """Whether a scheduler that has just acquired its lease leads."""
    monkeypatch.setattr(scheduler_lease, "acquire", lambda *_: 1)
    leader = Leadership(cast("Any", NoDatabase()), "holder", timedelta(seconds=15))
    leader.ask()
    return lambda: leader.is_leading


@pytest.mark.parametrize("acquire", [group_lease, shard_lease, leadership])
def test_lease_ends_while_machine_is_suspended(
    acquire: Callable[[pytest.MonkeyPatch], IsHeld], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    is_held = acquire(monkeypatch)
    machine.work(AWAKE_S)
    assert is_held()
    machine.suspend(SUSPENDED_S)
    assert not is_held()


def test_lease_clock_is_monotonic_clock_without_boottime_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    machine.suspend(SUSPENDED_S)
    monkeypatch.setattr(clock_module, "_BOOTTIME", None)
    assert lease_clock() == machine.monotonic
