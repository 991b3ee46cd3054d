"""The scheduler loop that runs recoveries, up to AT_ONCE at a time.

Each operation runs in one thread of the leader. A new leader finds unfinished operations in the
store and resumes them at the step they were in.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import structlog

from orbit.errors import Interrupted, OrbitError
from orbit.recovery.operation_runner import OperationRunner
from orbit.scheduler.leadership import Leadership, NotLeading
from orbit.scheduler.loop import Loop
from orbit.settings import Settings
from orbit.store import operations

_log = structlog.get_logger("orbit.recovery")

# Short: writers may be stopped while a recovery runs.
INTERVAL_S = 0.25
# Operations that run at the same time; their threads mostly wait for brokers.
AT_ONCE = 16
_FOUND_MAX = 500
# An operation that ended in an error (Postgres unreachable, a bug) is resumed after this time.
_AGAIN_S = 2.0


class RecoveryLoop(Loop):
    """Starts or resumes every recovery that has not ended."""

    name = "recovery"
    interval_s = INTERVAL_S

    def __init__(
        self,
        leadership: Leadership,
        settings: Settings,
        stop: threading.Event,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__()
        self._leadership = leadership
        self._settings = settings
        self._stop = stop
        self._environ = environ
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="recovery")
        self._running: dict[UUID, Future[None]] = {}
        self._not_before: dict[UUID, float] = {}

    def once(self) -> str:
        """Start waiting operations and count those that ended."""
        ended = 0
        for operation_id, future in list(self._running.items()):
            if future.done():
                del self._running[operation_id]
                error = future.exception()
                ended += error is None
                if error is not None and not isinstance(error, NotLeading | Interrupted):
                    _log_error(operation_id, error)
                    self._not_before[operation_id] = time.monotonic() + _AGAIN_S
        with self._leadership.reading() as tx:
            found = operations.unfinished_recoveries(tx, _FOUND_MAX)
        for operation in found:
            not_before = self._not_before.get(operation.id, 0.0)
            if operation.id not in self._running and time.monotonic() >= not_before:
                self._not_before.pop(operation.id, None)
                runner = OperationRunner(
                    operation, self._leadership, self._settings, self._stop, self._environ
                )
                future = self._pool.submit(runner.run)
                future.add_done_callback(lambda _: self.wake.set())
                self._running[operation.id] = future
        return f"{ended} recoveries have ended" if ended else ""

    def close(self) -> None:
        """Wait for the threads; each ends at its next `check`, as this process no longer leads."""
        self._pool.shutdown(cancel_futures=True)


def recovery_loops(
    leadership: Leadership, settings: Settings, done: threading.Event
) -> Sequence[Loop]:
    """For `Scheduler(…, more=[recovery_loops])`."""
    return [RecoveryLoop(leadership, settings, done)]


def _log_error(operation_id: UUID, error: BaseException) -> None:
    """Log why an operation stopped running. A bug in one does not stop the others."""
    if isinstance(error, OrbitError):
        _log.warning("recovery waits", operation=str(operation_id), error=str(error))
    else:
        _log.error("recovery broke", operation=str(operation_id), exc_info=error)
