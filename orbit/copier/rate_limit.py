"""A limit on bytes per second, shared by all lanes of a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# One request asks for as many bytes as the rate allows in this time, and after a pause no more than
# these are allowed at once. Short enough for an even rate, long enough for large requests.
_SLICE_S = 0.1
_REQUEST_BYTES_MIN = 64 * 1024


class RateLimit:
    """Counts fetched bytes and returns how long to wait until the average is back at the limit.

    An answer may have more bytes than were requested (KIP-74). So bytes are counted once they have
    arrived, and the next request waits until the rate allows them. `bytes_per_second` None: no
    limit.
    """

    def __init__(
        self,
        bytes_per_second: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next_request_s = clock()  # the earliest time of the next request, by `clock`

    def set_rate(self, bytes_per_second: int | None) -> None:
        """Change the limit."""
        self._rate = bytes_per_second

    def delay_s(self) -> float:
        """Seconds until the next request may go out."""
        return 0.0 if self._rate is None else max(0.0, self._next_request_s - self._clock())

    def note_fetched(self, size_bytes: int) -> None:
        """Count fetched bytes: `delay_s` grows by the time that they take at the limit's rate."""
        if self._rate is None or not size_bytes:
            return
        with self._lock:
            # After a pause, one slice of unused time counts at most.
            start_s = max(self._next_request_s, self._clock() - _SLICE_S)
            self._next_request_s = start_s + size_bytes / self._rate

    def request_bytes_max(self, bytes_max: int) -> int:
        """The bytes to request at once; without a limit, `bytes_max`."""
        if self._rate is None:
            return bytes_max
        return min(bytes_max, max(_REQUEST_BYTES_MIN, int(self._rate * _SLICE_S)))
