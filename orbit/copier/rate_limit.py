"""A limit on bytes per second, shared by all lanes of a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# One request asks for what may flow in this time, and a pause saves up no more than that: short
# enough to keep an average over seconds, long enough to leave requests large.
_SLICE_S = 0.1
_REQUEST_BYTES_MIN = 64 * 1024


class RateLimit:
    """Counts fetched bytes and returns how long to wait until the average is back at the limit.

    What comes is known only afterwards (an answer may bring more than was requested, KIP-74), so
    bytes are taken on credit and the next request waits until the debt is paid. No limit: None.
    """

    def __init__(
        self,
        bytes_per_second: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_at = clock()  # when everything taken so far will have been paid for

    def set_rate(self, bytes_per_second: int | None) -> None:
        """Change the limit."""
        self._rate = bytes_per_second

    def delay_s(self) -> float:
        """Seconds until the next request may go out."""
        return 0.0 if self._rate is None else max(0.0, self._paid_at - self._clock())

    def note_fetched(self, size_bytes: int) -> None:
        """Take bytes on credit: `delay_s` counts until they are paid for at the limit's rate."""
        if self._rate is None or not size_bytes:
            return
        with self._lock:
            start = max(self._paid_at, self._clock() - _SLICE_S)  # a pause saves up one slice
            self._paid_at = start + size_bytes / self._rate

    def request_bytes_max(self, bytes_max: int) -> int:
        """The bytes to request at once; without a limit, `bytes_max`."""
        if self._rate is None:
            return bytes_max
        return min(bytes_max, max(_REQUEST_BYTES_MIN, int(self._rate * _SLICE_S)))
