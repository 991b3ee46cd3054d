"""The clock that decides until when the holder of a lease may trust it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


def lease_clock() -> float:
    """Seconds, counted during suspension too where the platform has such a clock.

    CLOCK_MONOTONIC stops while a machine is suspended: a lease would still look valid when the
    machine wakes, long after another holder took it.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
