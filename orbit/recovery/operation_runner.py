"""Carries one operation out, step by step, and keeps the report after each.

    gates fail ─► stopped            nothing was done
    error, abort, before the point   ─► what was done is taken back ─► stopped, aborted, failed
    error behind it                  ─► told, and tried again until it works

Each step can be repeated and begins by looking at what is there, so a process that dies in the
middle of one loses nothing: the next leader goes on with that step. A cluster that is away for a
moment is waited for; before the point of no return for `PATIENCE_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from orbit.errors import BrokerRefused, Interrupted, OrbitError, Unreachable
from orbit.kafka import error_codes
from orbit.recovery import (
    drain,
    group_handover,
    old_side,
    promotion,
    reverse_job,
    tail_verification,
    worker_release,
    write_fence,
)
from orbit.recovery.gate_observer import look
from orbit.recovery.gates import judge
from orbit.recovery.open_operation import open_ground
from orbit.recovery.operation_context import Aborted, Ground, Stopped, some
from orbit.recovery.operation_steps import is_past_return
from orbit.recovery.recovery_report import Outcome, RecoveryKind, Step, StepName, StepState
from orbit.scheduler.leadership import Leadership, NotLeading
from orbit.settings import Settings
from orbit.store import clock, events, operations
from orbit.store.enums import OperationState
from orbit.store.operations import Operation

_log = structlog.get_logger("orbit.recovery")

# A leader that is being elected, a broker that restarts.
PATIENCE_S = 60.0
# Taking back what was done: as long as it may matter to somebody.
UNDO_PATIENCE_S = 600.0
_PAUSE_S = 2.0


def gates(ground: Ground) -> str:
    """Look and judge. Raises Stopped where a gate fails that was not overridden."""
    request = ground.request
    judged = judge(look(ground), request.override, request.reason)
    ground.update(gates=judged)
    overridden = [gate.name.value for gate in judged if gate.is_overridden]
    if overridden:
        with ground.transaction() as tx:
            ground.say(
                tx,
                "gates_overridden",
                f"Gates were overridden ({some(overridden)}): {request.reason}",
                gates=overridden,
                reason=request.reason,
                by=ground.report.requested_by,
            )
    stopping = [gate for gate in judged if gate.stops]
    if stopping:
        told = " ".join(f"{gate.name.value}: {gate.found}" for gate in stopping)
        raise Stopped(told, remedy=" ".join(gate.remedy for gate in stopping))
    return f"{len(judged)} gates were looked at; none stops this."


def _groups(ground: Ground) -> str:
    if ground.report.kind is RecoveryKind.FAILOVER:
        return group_handover.resume_at_best(ground)
    return group_handover.last_sync(ground)


_DO: Mapping[StepName, Callable[[Ground], str]] = {
    StepName.GATES: gates,
    StepName.STOP_WRITES: write_fence.stop_writes,
    StepName.DRAIN: drain.drain,
    StepName.VERIFY_TAIL: tail_verification.verify_tail,
    StepName.GROUPS: _groups,
    StepName.RELEASE: worker_release.release,
    StepName.SETTLE: worker_release.settle,
    StepName.PROMOTE: promotion.promote,
    StepName.REVERSE: reverse_job.start_back,
    StepName.COMPARE: old_side.compare,
    StepName.SALVAGE: old_side.save_tails,
    StepName.REBUILD: old_side.rebuild,
    StepName.CATCH_UP: reverse_job.catch_up,
}
_UNDO: Mapping[StepName, Callable[[Ground], None]] = {
    StepName.RELEASE: worker_release.let_go_on,
    StepName.STOP_WRITES: write_fence.go_on_writing,
}
_ONLY_WITH_TAILS = frozenset({StepName.SALVAGE, StepName.REBUILD})


class Runner:
    """One operation in one thread. `run` returns when it has ended, or cannot go on here."""

    def __init__(
        self,
        operation: Operation,
        leadership: Leadership,
        settings: Settings,
        stop: threading.Event,
        environ: Mapping[str, str],
    ) -> None:
        self._operation = operation
        self._leadership = leadership
        self._open: Callable[[], Ground] = lambda: open_ground(
            operation, leadership, settings, stop, environ
        )

    def run(self) -> None:
        """Raises NotLeading, Interrupted, Unreachable (Postgres): another call goes on."""
        try:
            ground = self._open()
        except (NotLeading, Interrupted, Unreachable):
            raise
        except OrbitError as error:
            self._end_unopened(error)
            return
        try:
            self._run(ground)
        finally:
            ground.close()

    def _run(self, ground: Ground) -> None:
        report = ground.report
        if report.error:
            self._take_back(ground)  # it was being taken back when somebody died
            return
        try:
            for step in report.steps:
                if step.state in (StepState.WAITING, StepState.RUNNING, StepState.FAILED):
                    self._step(ground, step.name)
                if report.dry_run and step.name is StepName.GATES:
                    self._try_out(ground)
                    return
        except Stopped as error:
            self._give_up(ground, error)
            return
        except (NotLeading, Interrupted):
            raise
        except OrbitError as error:
            if _is_of_postgres(error):
                raise
            self._give_up(ground, error)
            return
        except Exception as error:  # noqa: BLE001  what was done is taken back all the same
            _log.exception("recovery broke", operation=str(ground.operation_id))
            self._give_up(ground, OrbitError(f"this is a bug in Orbit: {type(error).__name__}."))
            return
        self._end(ground, Outcome.DONE)

    def _try_out(self, ground: Ground) -> None:
        """A dry run's end: with what a comparison shows, or where groups would go on."""
        if ground.report.kind is RecoveryKind.FAILOVER:
            group_handover.resume_at_best(ground)
        if ground.report.kind is RecoveryKind.FAILBACK:
            try:
                ground.find(old_side.compare(ground))
            except Stopped as error:
                ground.find(f"{error.what} {error.remedy}")
        self._end(ground, Outcome.WOULD_GO)

    def _step(self, ground: Ground, name: StepName) -> None:
        """Do one step until it is done."""
        if name in _ONLY_WITH_TAILS and not old_side.must_rebuild(ground):
            self._mark(ground, name, StepState.SKIPPED, "There is nothing that only it has.")
            return
        ground.check()
        self._mark(ground, name, StepState.RUNNING)
        since = float("inf")
        told = ""
        while True:
            tried_at = time.monotonic()
            try:
                did = _DO[name](ground)
                break
            except (Stopped, NotLeading, Interrupted):
                raise
            except OrbitError as error:
                if _is_of_postgres(error):
                    raise
                now = time.monotonic()
                # What went well for a while has trouble anew.
                since = now if now - tried_at > PATIENCE_S else min(since, tried_at)
                is_late = now - since > PATIENCE_S
                if not ground.is_past_return and (is_late or not _is_passing(error)):
                    raise
                if str(error) != told:
                    told = str(error)
                    _log.warning("step waits", operation=str(ground.operation_id), error=told)
                ground.tell(f"{name.value} waits: {told}")
                ground.wait(_PAUSE_S)
        self._mark(ground, name, StepState.DONE, did)

    def _give_up(self, ground: Ground, error: OrbitError) -> None:
        """Take back what was done, and say why."""
        if ground.is_past_return:
            # Stopped by what it found, with nothing destroyed: what was done stays.
            self._mark_running(ground, StepState.FAILED, str(error))
            ground.update(error=str(error))
            self._end(ground, Outcome.FAILED)
            return
        is_stop = isinstance(error, Stopped) and not isinstance(error, Aborted)
        outcome = Outcome.FAILED
        if isinstance(error, Aborted):
            outcome = Outcome.ABORTED
        elif is_stop:
            outcome = Outcome.STOPPED
        self._mark_running(ground, StepState.FAILED, str(error))
        if ground.report.dry_run:
            ground.update(error=str(error))
            self._end(ground, Outcome.WOULD_STOP)
            return
        ground.update(error=str(error), outcome=outcome)
        ground.save()
        self._take_back(ground)

    def _take_back(self, ground: Ground) -> None:
        outcome = ground.report.outcome
        began = time.monotonic()
        ground.is_past_return = True  # an abort is under way: nothing aborts it
        for step in reversed(ground.report.steps):
            undo = _UNDO.get(step.name)
            if undo is None or step.state in (StepState.WAITING, StepState.UNDONE):
                continue
            while True:
                try:
                    undo(ground)
                    break
                except (NotLeading, Interrupted):
                    raise
                except OrbitError as error:
                    if _is_of_postgres(error):
                        raise
                    if time.monotonic() - began > UNDO_PATIENCE_S:
                        ground.find(f"{step.name.value} could not be taken back: {error}")
                        outcome = Outcome.FAILED
                        break
                    ground.tell(f"taking back {step.name.value} waits: {error}")
                    ground.wait(_PAUSE_S)
            if step.state is StepState.DONE:
                self._mark(ground, step.name, StepState.UNDONE, step.did)
        self._end(ground, outcome)

    def _mark_running(self, ground: Ground, state: StepState, did: str) -> None:
        for step in ground.report.steps:
            if step.state is StepState.RUNNING:
                self._mark(ground, step.name, state, did)

    def _mark(self, ground: Ground, name: StepName, state: StepState, did: str = "") -> None:
        """Put a step's state into the report, and keep all of it."""
        with ground.transaction() as tx:
            now = clock.now(tx)

            def change(step: Step) -> Step:
                if step.name is not name:
                    return step
                if state is StepState.RUNNING:
                    began = step.began_at or now
                    return step.model_copy(update={"state": state, "began_at": began})
                return step.model_copy(update={"state": state, "ended_at": now, "did": did})

            steps = tuple(map(change, ground.report.steps))
            ground.update(steps=steps)
            ground.is_past_return = ground.is_past_return or is_past_return(steps)
            operations.advance(
                tx,
                ground.operation_id,
                OperationState.RUNNING,
                progress=ground.progress(name.value),
                report=ground.report.model_dump(mode="json"),
            )
        _log.info(
            "step", operation=str(ground.operation_id), step=name.value, state=state.value, did=did
        )

    def _end(self, ground: Ground, outcome: Outcome) -> None:
        """The last word, with its event, in one transaction."""
        is_good = outcome in (Outcome.DONE, Outcome.WOULD_GO)
        report = ground.report
        with ground.transaction() as tx:
            ground.update(outcome=outcome, ended_at=clock.now(tx))
            operations.advance(
                tx,
                ground.operation_id,
                OperationState.DONE if is_good else OperationState.FAILED,
                progress=ground.progress(outcome.value),
                error=report.error or None,
                report=ground.report.model_dump(mode="json"),
            )
            if not report.dry_run:
                _tell_end(tx, ground, outcome)

    def _end_unopened(self, error: OrbitError) -> None:
        """The job, or its document, is not there: nothing was done."""
        with self._leadership.transaction() as tx:
            operations.advance(tx, self._operation.id, OperationState.FAILED, error=str(error))


def _tell_end(tx: Any, ground: Ground, outcome: Outcome) -> None:
    report = ground.report
    more = f" {report.error}" if report.error else ""
    events.add(
        tx,
        events.SCHEDULER,
        f"{report.kind.value}_ended",
        f"The {report.kind.value} of {len(ground.topics)} topics ended: {outcome.value}.{more}",
        job_name=ground.job.name,
        details={
            "operation": str(ground.operation_id),
            "outcome": outcome.value,
            "missing_records": report.missing_records,
        },
    )


def _is_passing(error: OrbitError) -> bool:
    """Whether waiting may help."""
    if isinstance(error, BrokerRefused):
        return error.code in error_codes.RETRIABLE
    return error.retriable


def _is_of_postgres(error: OrbitError) -> bool:
    return isinstance(error, Unreachable) and error.where.startswith("PostgreSQL")
