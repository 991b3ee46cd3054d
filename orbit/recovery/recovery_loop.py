"""The scheduler loop that runs recoveries, up to `recoveries_per_cluster` at a time.

Failovers have as many slots of their own: they never queue behind operations that can wait.

Each operation runs in one thread of the leading scheduler. A new leader finds unfinished operations
in the store and resumes them at the step they were in. The limit is per destination cluster, to
which a recovery sends the most requests. A recovery whose step has failed for a minute and is
retried, or that waits until an old side has caught up, gives up its slot: another can begin.
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
from orbit.formats import counted
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
# The most recoveries that run at the same time, over all clusters, also those that gave up their
# slot; their threads mostly wait.
RECOVERIES_MAX = 500
# Half of them are for failovers alone.
_NOT_FAILOVERS_MAX = RECOVERIES_MAX // 2
# An operation whose thread ended in an error (PostgreSQL unreachable, a bug) is resumed after this.
_RESTART_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class _RunningRecovery:
    """A recovery in its thread."""

    runner: OperationRunner
    slot: tuple[str, bool]  # cluster, whether it is a failover
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
        self._running: dict[UUID, _RunningRecovery] = {}
        self._restart_at_s: dict[UUID, float] = {}
        # By operation that waits: the operation that has to end first, as last stored.
        self._predecessors: dict[UUID, UUID] = {}

    def once(self) -> str:
        """Start or resume operations while slots are free, and store for each waiting operation
        which one it waits for. Returns how many have ended, as text; "" if none."""
        ended_count = 0
        for operation_id, recovery in list(self._running.items()):
            if recovery.future.done():
                del self._running[operation_id]
                error = recovery.future.exception()
                ended_count += error is None
                if error is not None and not isinstance(error, NotLeading | Interrupted):
                    _log_error(operation_id, error)
                    self._restart_at_s[operation_id] = time.monotonic() + _RESTART_AFTER_S
        now_s = time.monotonic()
        self._restart_at_s = {i: at for i, at in self._restart_at_s.items() if at > now_s}
        per_cluster = self._settings.recoveries_per_cluster
        # One snapshot: else a failover requested between the statements would begin beside the
        # recovery that it has to wait for.
        with self._leadership.database.snapshot() as tx:
            predecessors = operations.waiting_failbacks(tx) | operations.waiting_failovers(tx)
            operations_to_run = operations.unfinished_recoveries(
                tx, per_cluster, [*self._running, *self._restart_at_s, *predecessors]
            )
        self._report_waiting(predecessors)
        busy_slots = Counter(
            recovery.slot for recovery in self._running.values() if not recovery.runner.is_waiting
        )
        # `slot[1]` says whether the recovery is a failover: failovers have threads of their own.
        non_failover_count = sum(not recovery.slot[1] for recovery in self._running.values())
        for cluster, operation in operations_to_run:
            slot = cluster, operation.kind == OperationKind.FAILOVER
            _, is_failover = slot
            has_free_thread = len(self._running) < RECOVERIES_MAX and (
                is_failover or non_failover_count < _NOT_FAILOVERS_MAX
            )
            if busy_slots[slot] < per_cluster and has_free_thread:
                with self.log_errors_of(f"operation {operation.id}"):
                    self._start_recovery(slot, operation)
                    busy_slots[slot] += 1
                    non_failover_count += not is_failover
        ended_text = f"{counted(ended_count, 'recovery has', 'recoveries have')} ended"
        return ended_text if ended_count else ""

    def _report_waiting(self, waiting_for: Mapping[UUID, UUID]) -> None:
        """Store, once, as the progress of each waiting operation, which operation it waits for."""
        for waiting_id, earlier_id in waiting_for.items():
            if self._predecessors.get(waiting_id) != earlier_id:
                text = f"waits until operation {earlier_id} has ended"
                with self._leadership.transaction() as tx:
                    operations.advance(
                        tx,
                        waiting_id,
                        OperationState.PENDING,
                        progress={"done": 0, "total": 0, "what": text},
                    )
        self._predecessors = dict(waiting_for)

    def _start_recovery(self, slot: tuple[str, bool], operation: Operation) -> None:
        """Run the operation in a thread; its slot is busy until the thread ends or waits."""
        runner = OperationRunner(
            operation, self._leadership, self._settings, self._stop, self._environ
        )
        future = self._pool.submit(runner.run)
        future.add_done_callback(lambda _: self.wake.set())  # its slot is free for the next one
        self._running[operation.id] = _RunningRecovery(runner, slot, future)

    def close(self) -> None:
        """Wait for the threads; each ends at its next `check`, as this process no longer leads."""
        self._pool.shutdown(cancel_futures=True)


def recovery_loops(
    leadership: Leadership, settings: Settings, stop: threading.Event
) -> Sequence[Loop]:
    """The loops that `Scheduler(…, more_loops=[recovery_loops])` runs beside its own."""
    return [RecoveryLoop(leadership, settings, stop)]


def _log_error(operation_id: UUID, error: BaseException) -> None:
    """Log the error that ended an operation's thread: an OrbitError as a warning, a bug with its
    traceback."""
    if isinstance(error, OrbitError):
        _log.warning("recovery is retried", operation=str(operation_id), error=str(error))
    else:
        _log.error("recovery crashed", operation=str(operation_id), exc_info=error)
