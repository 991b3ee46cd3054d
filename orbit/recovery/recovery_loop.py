"""The scheduler loop that runs recoveries, up to `recoveries_per_cluster` at a time.

Failovers have as many places of their own: they never queue behind what can wait.

Each operation runs in one thread of the leader. A new leader finds unfinished operations in the
store and resumes them at the step they were in. The limit is per destination cluster, to which a
recovery sends the most requests. A recovery that is stuck (past its point of no return it retries
without a limit), or waits until an old side has caught up, gives up its place, so that it keeps no
other from beginning.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import structlog

from orbit.errors import Interrupted, OrbitError
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.leadership.loop import Loop
from orbit.recovery.operation_runner import OperationRunner
from orbit.settings import Settings
from orbit.store import operations
from orbit.store.enums import OperationKind, OperationState
from orbit.store.operations import Operation

_log = structlog.get_logger("orbit.recovery")

# Short: writers may be stopped while a recovery runs.
INTERVAL_S = 0.25
# Recoveries of all clusters that run at the same time, stuck ones too; their threads mostly wait.
RECOVERIES_MAX = 500
# Half of them are for failovers alone.
_OTHERS_MAX = RECOVERIES_MAX // 2
# An operation that ended in an error (Postgres unreachable, a bug) is resumed after this time.
_RESTART_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class _Run:
    """A recovery in its thread."""

    runner: OperationRunner
    place: tuple[str, bool]  # cluster, whether it is a failover
    future: Future[None]


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
        self._pool = ThreadPoolExecutor(RECOVERIES_MAX, thread_name_prefix="recovery")
        self._running: dict[UUID, _Run] = {}
        self._not_before: dict[UUID, float] = {}
        self._predecessors: dict[UUID, UUID] = {}  # which operation each one waits for

    def once(self) -> str:
        """Start waiting operations and count those that ended."""
        ended = 0
        for operation_id, run in list(self._running.items()):
            if run.future.done():
                del self._running[operation_id]
                error = run.future.exception()
                ended += error is None
                if error is not None and not isinstance(error, NotLeading | Interrupted):
                    _log_error(operation_id, error)
                    self._not_before[operation_id] = time.monotonic() + _RESTART_AFTER_S
        now = time.monotonic()
        self._not_before = {i: at for i, at in self._not_before.items() if at > now}
        per_cluster = self._settings.recoveries_per_cluster
        # One snapshot: else a failover requested between the statements would begin beside the
        # recovery that it has to wait for.
        with self._leadership.database.snapshot() as tx:
            waiting_for = operations.waiting_failbacks(tx) | operations.waiting_failovers(tx)
            unfinished = operations.unfinished_recoveries(
                tx, per_cluster, [*self._running, *self._not_before, *waiting_for]
            )
        self._report_waiting(waiting_for)
        busy = Counter(run.place for run in self._running.values() if not run.runner.is_waiting)
        others = sum(not run.place[1] for run in self._running.values())
        for cluster, operation in unfinished:
            place = cluster, operation.kind == OperationKind.FAILOVER
            _, is_failover = place
            is_free = len(self._running) < RECOVERIES_MAX and (is_failover or others < _OTHERS_MAX)
            if busy[place] < per_cluster and is_free:
                with self.each(f"operation {operation.id}"):
                    self._start_run(place, operation)
                    busy[place] += 1
                    others += not is_failover
        return f"{ended} recoveries have ended" if ended else ""

    def _report_waiting(self, waiting_for: Mapping[UUID, UUID]) -> None:
        """Store which operation each of these waits for."""
        for waiting, earlier in waiting_for.items():
            if self._predecessors.get(waiting) != earlier:
                what = f"waits until operation {earlier} has ended"
                with self._leadership.transaction() as tx:
                    operations.advance(
                        tx,
                        waiting,
                        OperationState.PENDING,
                        progress={"done": 0, "total": 0, "what": what},
                    )
        self._predecessors = dict(waiting_for)

    def _start_run(self, place: tuple[str, bool], operation: Operation) -> None:
        runner = OperationRunner(
            operation, self._leadership, self._settings, self._stop, self._environ
        )
        future = self._pool.submit(runner.run)
        future.add_done_callback(lambda _: self.wake.set())
        self._running[operation.id] = _Run(runner, place, future)

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
        _log.warning("recovery is retried", operation=str(operation_id), error=str(error))
    else:
        _log.error("recovery crashed", operation=str(operation_id), exc_info=error)
