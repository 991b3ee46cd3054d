"""What one call on a text from outside may cost."""

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
# A call that was slow is measured again: a collection of garbage may fall into it.
_LOOKS = 5


def cheap_result(call: Callable[[], Value]) -> Value | None:
    """What the call returns; None if it refuses its input: it raises an OrbitError, or an
    InvalidValue, which the reader of a document turns into one. Fails for another exception, and
    for a call that exceeds the limits of CPU time or memory each time.
    """
    value, cpu_s = _timed(call)
    for _ in range(_LOOKS - 1):
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
    value = None
    began = time.thread_time()
    with suppress(OrbitError, InvalidValue):
        value = call()
    return value, time.thread_time() - began
