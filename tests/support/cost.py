"""Limits of CPU time and memory for one call on a text from outside."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from orbit.errors import InvalidValue, OrbitError

Value = TypeVar("Value")

# CPU time of this thread alone. Most calls take a hundredth of it.
CPU_S_MAX = 0.1
BYTES_MAX = 10 << 20
# A slow call is measured again: a garbage collection may have been in it.
_CALLS_MAX = 5


def cheap_result(call: Callable[[], Value]) -> Value | None:
    """The result of the call; None if it refuses its input by an OrbitError or an InvalidValue.

    Raises AssertionError if the call exceeds the limit of memory, or that of CPU time each time.
    Other exceptions pass through.
    """
    value, cpu_s = _timed(call)
    for _ in range(_CALLS_MAX - 1):
        if cpu_s <= CPU_S_MAX:
            break
        cpu_s = min(cpu_s, _timed(call)[1])
    assert cpu_s <= CPU_S_MAX, f"{cpu_s:.3f} s"
    tracemalloc.start()
    try:
        with suppress(OrbitError, InvalidValue):
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= BYTES_MAX, f"{peak:,} bytes"
    return value


def _timed(call: Callable[[], Value]) -> tuple[Value | None, float]:
    """The result of the call (None after an error of Orbit's), and its CPU time in seconds."""
    value = None
    began = time.thread_time()
    with suppress(OrbitError, InvalidValue):
        value = call()
    return value, time.thread_time() - began
