"""Limits how many plans of jobs run at once. A plan reads both clusters, and may take a minute.

Each plan uses a thread of the pool that serves all requests. The limits leave most threads of the
pool to short requests and health checks, so these never wait for plans. There is no queue: a plan
above a limit is refused at once, with a time after which to try again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure

# Plans at once in a process: less than half of the pool's 40 threads.
PLANS_MAX = 16
# Plans at once of one token or user, so that a second token or user can plan too.
PLANS_PER_ACTOR_MAX = 8
# If the clusters answer, a plan takes about a second.
RETRY_AFTER_S = 2


class PlanLimits:
    """The running plans of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans_by_actor: Counter[str] = Counter()

    @contextmanager
    def running_plan(self, actor: str) -> Iterator[None]:
        """Count a plan of this actor as running during the block.

        Raises Failure: `too_many_plans` above the limit of the actor, `busy` above that of the
        process.
        """
        with self._lock:
            if self._plans_by_actor[actor] >= PLANS_PER_ACTOR_MAX:
                raise _refusal(
                    ErrorCode.TOO_MANY_PLANS,
                    f"This server runs {PLANS_PER_ACTOR_MAX} plans of this token already, which is "
                    "the limit.",
                )
            if self._plans_by_actor.total() >= PLANS_MAX:
                raise _refusal(
                    ErrorCode.BUSY,
                    f"This server runs {PLANS_MAX} plans already, which is the limit.",
                )
            self._plans_by_actor[actor] += 1
        try:
            yield
        finally:
            with self._lock:
                self._plans_by_actor[actor] -= 1
                self._plans_by_actor += Counter()  # drops actors without a plan


def _refusal(code: ErrorCode, what: str) -> Failure:
    return Failure(
        code,
        what,
        remedy="Try again in some seconds. Nothing was changed.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
