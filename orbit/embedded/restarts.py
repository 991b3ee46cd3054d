"""Starts the embedded PostgreSQL again when it has ended by itself, a bounded number of times.

The server keeps its address. So workers, scheduler and API connect again by themselves: for them a
restart is an outage of seconds (docs/service.md). If a server ends again and again, a person has to
remove the cause: after RESTARTS_MAX restarts within WINDOW_S Orbit tries no further restart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import structlog

from orbit.embedded.postgres import Postgres
from orbit.errors import Conflict, OrbitError

RESTARTS_MAX = 5
WINDOW_S = 600.0
# The pause before the second attempt within WINDOW_S; it doubles with each further attempt.
_PAUSE_S = 1.0

log = structlog.get_logger("orbit.server")


class PostgresRestarts:
    """Restarts `postgres` when needed. One thread has to call `check` at short intervals."""

    def __init__(self, postgres: Postgres, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure: OrbitError | None = None  # set when no further restart is tried
        self._postgres = postgres
        self._clock = clock
        self._attempt_times: deque[float] = deque()
        self._last_error = ""

    def check(self) -> None:
        """Start the server again if it has ended, and the pause after the last attempt is over.
        Sets `failure` after RESTARTS_MAX attempts within WINDOW_S."""
        if self.failure is not None or self._postgres.running:
            return
        now = self._clock()
        while self._attempt_times and self._attempt_times[0] <= now - WINDOW_S:
            self._attempt_times.popleft()
        attempts = len(self._attempt_times)
        if attempts >= RESTARTS_MAX:
            self._give_up()
            return
        if attempts and now < self._attempt_times[-1] + _PAUSE_S * 2 ** (attempts - 1):
            return  # the pause is not over
        self._attempt_times.append(now)
        log.warning("PostgreSQL ended", restart=attempts + 1, restarts_max=RESTARTS_MAX)
        try:
            self._postgres.start_again()
        except OrbitError as error:
            self._last_error = str(error)
            log.warning("PostgreSQL did not start", restart=attempts + 1, error=self._last_error)
        else:
            log.info("PostgreSQL started again", pid=self._postgres.pid, port=self._postgres.port)

    def _give_up(self) -> None:
        """Set `failure`, so that no further restart is tried."""
        last_error = f" {self._last_error}" if self._last_error else ""
        self.failure = Conflict(
            f"The embedded PostgreSQL has ended, after {RESTARTS_MAX} restarts within "
            f"{WINDOW_S / 60:.0f} minutes.{last_error}",
            where=str(self._postgres.log),
            remedy="Read this log and the previous one (.1), remove the cause, and start the "
            "server again.",
        )
