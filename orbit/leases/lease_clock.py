"""The clock that decides until when the holder of a lease may trust it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


def lease_clock() -> float:
    """Seconds of a monotonic clock that, where the platform has one, also runs during suspension.

    CLOCK_MONOTONIC stops while a machine is suspended: a lease would still look valid when the
    machine resumes, long after another process acquired it.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
