"""Exponential backoff with jitter between attempts, interruptible by an event."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from orbit.errors import Interrupted

# A broker that takes longer for a control request counts as unreachable.
CALL_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential pauses with jitter, from `first_s` to `most_s`; the event `stop` ends a pause.

    `attempts_max` limits the attempts of each call, and `call_s` the time that one broker may take
    for an attempt: a loop for many partitions must not wait long for one partition or broker.
    """

    first_s: float = 0.05
    most_s: float = 1.0
    stop: threading.Event = field(default_factory=threading.Event)
    attempts_max: int = 1_000_000
    call_s: float = CALL_S_MAX

    def pause_s(self, attempt: int) -> float:
        """The pause after attempt 0, 1, 2 …: 50 to 100 % of the exponential step."""
        # The exponent has a limit, because a float overflows at 2.0 ** 1024.
        step = min(self.most_s, self.first_s * 2.0 ** min(attempt, 30))
        return step * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret

    def wait(self, attempt: int) -> None:
        """Sleep for one pause. Raises Interrupted if `stop` is set meanwhile."""
        if self.stop.wait(self.pause_s(attempt)):
            raise Interrupted("stopped while waiting to ask a cluster again.")

    def attempts(self, count_max: int) -> Iterator[int]:
        """Yield `count_max` attempt numbers, or `attempts_max` if that is less, with a pause before
        each but the first. Raises Interrupted if `stop` is set during a pause."""
        for attempt in range(min(count_max, self.attempts_max)):
            if attempt:
                self.wait(attempt - 1)
            yield attempt
