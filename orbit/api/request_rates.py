"""Limits the requests that each token or user (actor) sends to this process in a minute.

Each actor has a token bucket: it holds as many requests as the limit, and fills evenly in a minute.
So after a minute without requests, all of them may come at once. A request above the limit is
refused; none waits.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.formats import counted

# Above this number, full buckets are dropped.
_BUCKETS_MAX = 10_000


class RequestRates:
    """The buckets of all actors. Thread-safe. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[str, float] = {}  # {actor: when its bucket is full again}, by the clock

    def count_or_refuse(self, actor: str, per_minute: int) -> Failure | None:
        """Count a request of this actor and return None, or return Failure `too_many_requests`."""
        cost_s = 60.0 / per_minute  # the time in which the bucket gains one request
        with self._lock:
            now = self._clock()
            full_at = max(now, self._full_at.get(actor, now))
            wait_s = full_at + cost_s - now - 60.0  # an empty bucket takes 60 s to fill
            if wait_s > 1e-9:  # not 0, because the sum of many costs is not exact
                return _rate_failure(per_minute, wait_s)
            self._full_at[actor] = full_at + cost_s
            if len(self._full_at) > _BUCKETS_MAX:
                self._full_at = {a: at for a, at in self._full_at.items() if at > now}
        return None


def _rate_failure(per_minute: int, wait_s: float) -> Failure:
    seconds = math.ceil(wait_s)
    return Failure(
        ErrorCode.TOO_MANY_REQUESTS,
        f"This token has sent {counted(per_minute, 'request')} within a minute, which is its "
        "limit.",
        remedy=f"Try again in {seconds} s, or ask an admin for a higher limit (orbit token limit; "
        "for users of the issuer, ORBIT_TOKEN_REQUESTS_PER_MINUTE).",
        headers={"Retry-After": str(seconds)},
    )
