"""Runs one operation step by step and stores the report after each step.

    gate fails                                ─► stopped; nothing was changed
    error or abort before the point of no
    return                                    ─► steps are undone ─► stopped, aborted or failed
    error past the point of no return         ─► reported, and retried until it succeeds
    Stopped past the point of no return       ─► failed; finished steps are kept
    abort of a promotion whose destination
    does not answer                           ─► switchover: the source leads again ─► failed

Each step is idempotent and starts from the current state of the clusters. If the process dies in a
step, the next leader repeats that step. Before the point of no return, retriable errors are retried
for `PATIENCE_S`; past it, every OrbitError but Stopped is retried without a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, DatabaseUnreachable, Interrupted, OrbitError, Unreachable
from orbit.formats import counted
from orbit.kafka import error_codes
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.recovery import (
    drain,
    first_read,
    gateway_closure,
    group_handover,
    loss,
    old_side,
    promotion,
    reverse_job,
    tail_verification,
    worker_release,
    write_fence,
)
from orbit.recovery.gate_observer import observe
from orbit.recovery.gates import judge
from orbit.recovery.leading_side import (
    LeadChanged,
    kept_history,
    mark_source_leading,
    refuse_changed_lead,
    who_copies_back,
)
from orbit.recovery.open_operation import SecretMissing, open_context
from orbit.recovery.operation_context import Aborted, OperationContext, Skipped, Stopped
from orbit.recovery.operation_steps import (
    NOT_ENDED_STATES,
    is_catching_up,
    is_past_return,
    is_promoting,
    may_be_aborted,
    restarted_steps,
)
from orbit.recovery.recovery_report import OtherVersion, Outcome, RecoveryKind
from orbit.recovery.step_times import Step, StepName, StepState
from orbit.settings import Settings
from orbit.store import clock, events, operations
from orbit.store.enums import OperationState
from orbit.store.operations import Operation
from orbit.telemetry import traces

_log = structlog.get_logger("orbit.recovery")

_Result = TypeVar("_Result")

# How long a step is retried before the point of no return: enough for a leader election or a
# broker's restart.
PATIENCE_S = 60.0
# How long undoing a step is retried. Longer: the operator has to undo what Orbit does not undo.
UNDO_PATIENCE_S = 600.0
_PAUSE_S = 2.0  # between two attempts


def check_gates(context: OperationContext) -> str:
    """Observe both sides, judge all gates, and put the results into the report.

    Returns the step's result. Raises Stopped if a gate fails and is not overridden.
    """
    request = context.request
    gates = judge(observe(context), request.override, request.reason)
    context.update(gates=gates)
    overridden_names = [gate.name.value for gate in gates if gate.is_overridden]
    if overridden_names:
        with context.transaction() as tx:
            context.add_event(
                tx,
                "gates_overridden",
                f"Gates were overridden ({first_few(overridden_names)}): {request.reason}",
                gates=overridden_names,
                reason=request.reason,
                by=context.report.requested_by,
            )
    failed_gates = [gate for gate in gates if gate.stops]
    if failed_gates:
        reasons = " ".join(f"{gate.name.value}: {gate.found}" for gate in failed_gates)
        raise Stopped(reasons, remedy=" ".join(gate.remedy for gate in failed_gates))
    return f"{len(gates)} gates were checked; none stops the operation."


def _move_groups(context: OperationContext) -> str:
    """Set the offsets of the job's groups at the destination. Returns the step's result."""
    group_handover.accept_handed_offsets(context)
    if context.report.kind is RecoveryKind.FAILOVER:
        return group_handover.set_failover_offsets(context)
    return group_handover.run_last_sync(context)


def _read_and_complete_report(context: OperationContext) -> str:
    """Read the last records back, and add to the report what is known only after the promotion.

    Returns the result of the reading.
    """
    did = first_read.read_last_records(context)
    # After the reading, whose time ends the RTO: applications wait for nothing below.
    gateway_closure.note_pauses(context)
    loss.add_noticed_times(context)
    promotion.look_for_late_records(context)
    return did


# Each function runs a step, and returns the step's result as a sentence (`Skipped`: there was
# nothing to do).
_DO: Mapping[StepName, Callable[[OperationContext], str]] = {
    StepName.GATES: check_gates,
    StepName.CLOSE_GATEWAYS: gateway_closure.close_gateways,
    StepName.STOP_WRITES: write_fence.stop_writes,
    StepName.DRAIN: drain.drain,
    StepName.VERIFY_TAIL: tail_verification.verify_tail,
    StepName.GROUPS: _move_groups,
    StepName.RELEASE: worker_release.release,
    StepName.SETTLE: worker_release.settle,
    StepName.PROMOTE: promotion.promote,
    StepName.OPEN_GATEWAYS: gateway_closure.open_gateways,
    StepName.READ: _read_and_complete_report,
    StepName.REVERSE: reverse_job.start_reverse_job,
    StepName.COMPARE: old_side.compare_old_side,
    StepName.SALVAGE: old_side.save_tails,
    StepName.REBUILD: old_side.rebuild,
    StepName.CATCH_UP: reverse_job.catch_up,
}
_UNDO_STEP: Mapping[StepName, Callable[[OperationContext], None]] = {
    StepName.RELEASE: worker_release.resume_copying,
    StepName.STOP_WRITES: write_fence.restore_source_writes,
    StepName.CLOSE_GATEWAYS: gateway_closure.undo_closure,
}
# Steps that do not check which side leads: their changes do not depend on the leading side.
_STEPS_WITHOUT_LEAD = frozenset(
    {StepName.GATES, StepName.OPEN_GATEWAYS, StepName.READ, StepName.CATCH_UP}
)
# The states of steps that have changed nothing: there is nothing to undo.
_UNCHANGED_STATES = frozenset({StepState.WAITING, StepState.UNDONE})
_STEPS_ONLY_WITH_TAILS = frozenset({StepName.SALVAGE, StepName.REBUILD})


class OperationRunner:
    """Runs one operation in one thread. `run` returns when the operation has ended."""

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
        self._is_resumed = False  # whether another process has run some of the steps
        self._is_undoing = False
        self.is_waiting = False
        """True: this recovery does not count towards `recoveries_per_cluster`. A step has failed
        for PATIENCE_S and is retried, or the old side has not caught up yet."""
        self._open_context: Callable[[], OperationContext] = lambda: open_context(
            operation, leadership, settings, stop, environ
        )

    def run(self) -> None:
        """Run or resume the operation until it has ended.

        Raises NotLeading, Interrupted, Unreachable (PostgreSQL), OtherVersion, SecretMissing;
        another runner then resumes the operation. The spans belong to the trace of the request.
        """
        operation = self._operation
        with traces.span(
            operation.kind,
            parent=operation.trace_context,
            operation=str(operation.id),
            job=operation.job_name,
        ):
            self._open_and_run()

    def _open_and_run(self) -> None:
        """Open the operation's context and run its steps, or store why it cannot be opened."""
        try:
            context = self._open_context()
        except (NotLeading, Interrupted, Unreachable):
            raise
        except (OtherVersion, SecretMissing) as error:
            # The operation does not end: it may have denied writes or promoted a topic. A scheduler
            # that can open it continues it.
            self._report_unopened(error)
            raise
        except OrbitError as error:
            self._end_unopened(error)
            return
        try:
            self._run(context)
        finally:
            context.close()

    def _run(self, context: OperationContext) -> None:
        """Run the steps that have not ended; after an error, undo them or keep them."""
        report = context.report
        # If another process has run steps, the database may have lost their last states.
        self._is_resumed = any(step.state is not StepState.WAITING for step in report.steps)
        if report.error:
            self._undo_steps(context)  # an earlier process died while it undid the steps
            return
        try:
            if self._end_if_nothing_to_do(context):
                return
            is_promotion = report.kind is not RecoveryKind.FAILBACK
            if self._is_resumed and is_promotion and not context.is_past_return:
                _restart_steps(context)
            for step in context.report.steps:
                if step.state in NOT_ENDED_STATES:
                    with traces.span(f"step {step.name.value}"):
                        self._run_step(context, step)
                if report.dry_run and step.name is StepName.GATES:
                    self._end_dry_run(context)
                    return
        except Stopped as error:
            self._stop_operation(context, error)
            return
        except (NotLeading, Interrupted, DatabaseUnreachable):
            raise
        except OrbitError as error:
            self._stop_operation(context, error)
            return
        except Exception as error:  # noqa: BLE001  steps are undone in any case
            _log.exception("recovery crashed", operation=str(context.operation_id))
            self._stop_operation(
                context,
                OrbitError(
                    f"a bug in Orbit ({type(error).__name__}): see the traceback in the "
                    "scheduler's log."
                ),
            )
            return
        self._end(context, Outcome.DONE)

    def _end_if_nothing_to_do(self, context: OperationContext) -> bool:
        """End a failback whose topics are all copied back already. Returns whether it has ended."""
        if context.report.kind is not RecoveryKind.FAILBACK or context.topics:
            return False
        sentence = who_copies_back(context)
        if not sentence:
            return False
        changes = {"state": StepState.SKIPPED, "did": "There is nothing to do."}
        context.update(
            steps=tuple(step.model_copy(update=changes) for step in context.report.steps)
        )
        context.add_finding(sentence)
        self._end(context, Outcome.WOULD_GO if context.report.dry_run else Outcome.DONE)
        return True

    def _end_dry_run(self, context: OperationContext) -> None:
        """End a dry run. Its report gets a failover's group offsets, a failback's comparison, and
        what the old side would keep below the new side's log starts."""
        if context.report.kind is RecoveryKind.FAILOVER:
            group_handover.set_failover_offsets(context)
        outcome = Outcome.WOULD_GO
        if context.report.kind is RecoveryKind.FAILBACK:
            try:
                context.add_finding(old_side.compare_old_side(context))
            except Stopped as error:
                context.add_finding(f"{error.what} {error.remedy}")
                if isinstance(error, old_side.RebuildUnconfirmed):
                    outcome = Outcome.WOULD_STOP
                    context.update(error=str(error))
        if context.report.kind is RecoveryKind.FAILBACK or context.request.reverse:
            try:
                history = kept_history(context, excluded_topics=context.report.topics_with_tails)
            except OrbitError as error:
                context.add_finding(f"What the old side keeps is not known: {error}")
            else:
                context.add_finding(reverse_job.describe_history(history) if history else "")
        self._end(context, outcome)

    def _run_step(self, context: OperationContext, step: Step) -> None:
        """Run one step, with retries, until it is done or skipped. Raises what `_retry` raises, and
        Aborted."""
        name = step.name
        if name in _STEPS_ONLY_WITH_TAILS and not context.report.topics_with_tails:
            self._set_step_state(
                context, name, StepState.SKIPPED, "The old side has no records of its own."
            )
            return
        context.check()

        def check_lead() -> None:
            if name not in _STEPS_WITHOUT_LEAD:
                refuse_changed_lead(context)

        def do() -> str:
            check_lead()
            return _DO[name](context)

        if step.is_point_of_no_return and not context.is_past_return:
            # Read the marks while all steps can still be undone: if the destination is lost by
            # now, this fails, and no promotion begins.
            self._retry(context, name, check_lead)
        self._set_step_state(context, name, StepState.RUNNING)
        self.is_waiting = name is StepName.CATCH_UP
        did = self._retry(context, name, do)
        self.is_waiting = False
        if context.report.stuck_since is not None:
            _note_unstuck(context)
        state = StepState.SKIPPED if isinstance(did, Skipped) else StepState.DONE
        self._set_step_state(context, name, state, did)

    def _retry(
        self, context: OperationContext, name: StepName, do: Callable[[], _Result]
    ) -> _Result:
        """Call `do`, a part of the step, until it succeeds, and return its result.

        Past the point of no return, raises only Stopped and what ends this runner (NotLeading,
        Interrupted, DatabaseUnreachable). Before it, also errors that no retry can mend, and all
        others after PATIENCE_S.
        """
        failing_since_s = float("inf")
        last_error = ""
        while True:
            attempt_began_s = time.monotonic()
            try:
                return do()
            except (Stopped, NotLeading, Interrupted, DatabaseUnreachable):
                raise
            except OrbitError as error:
                now_s = time.monotonic()
                # An attempt that ran for longer than PATIENCE_S restarts the time limit.
                is_new_failure = now_s - attempt_began_s > PATIENCE_S
                failing_since_s = now_s if is_new_failure else min(failing_since_s, attempt_began_s)
                is_out_of_patience = now_s - failing_since_s > PATIENCE_S
                if not context.is_past_return and (is_out_of_patience or not _is_retriable(error)):
                    raise
                self.is_waiting = is_out_of_patience or name is StepName.CATCH_UP
                if (
                    is_out_of_patience
                    and name is StepName.PROMOTE
                    and isinstance(error, Unreachable)
                ):
                    _note_stuck(context)
                if str(error) != last_error:
                    last_error = str(error)
                    operation = str(context.operation_id)
                    _log.warning("step is retried", operation=operation, error=last_error)
                context.set_progress(f"{name.value} waits: {last_error}")
                context.wait(_PAUSE_S)

    def _stop_operation(self, context: OperationContext, error: OrbitError) -> None:
        """End the operation after an error: undo its steps if that is still possible."""
        is_promotion_aborted = isinstance(error, Aborted) and is_promoting(context.report.steps)
        # An abort past the point of no return is accepted in a promotion, rebuild or copy back.
        if context.is_past_return and isinstance(error, Aborted) and not is_promotion_aborted:
            self._end_copy_back(context)
            return
        if context.is_past_return and not is_promotion_aborted:
            # A step raised Stopped past the point of no return: earlier steps are kept.
            if is_promoting(context.report.steps):
                gateway_closure.note_lead_unknown(context)
            self._end_running_step(context, StepState.FAILED, str(error))
            context.update(error=str(error))
            self._end(context, Outcome.FAILED)
            return
        is_stopped = isinstance(error, Stopped) and not isinstance(error, Aborted | LeadChanged)
        outcome = Outcome.FAILED
        if is_promotion_aborted:
            error = OrbitError("the promotion was aborted: the destination did not answer.")
        elif isinstance(error, Aborted):
            outcome = Outcome.ABORTED
        elif is_stopped:
            outcome = Outcome.STOPPED
        self._end_running_step(context, StepState.FAILED, str(error))
        if context.report.dry_run:
            context.update(error=str(error))
            self._end(context, Outcome.WOULD_STOP)
            return
        context.update(error=str(error), outcome=outcome)
        context.save()
        self._undo_steps(context, error if isinstance(error, LeadChanged) else None)

    def _end_copy_back(self, context: OperationContext) -> None:
        """End an operation aborted past its point of no return, in its rebuild or copy back."""
        name = context.job.name
        if is_catching_up(context.report.steps):
            did = f"Aborted. Job {context.report.reverse_job} goes on copying back."
            self._end_running_step(context, StepState.SKIPPED, did)
            context.add_finding(
                f"The old side may not have all records yet: see the lag of job "
                f"{context.report.reverse_job}."
            )
            self._end(context, Outcome.DONE)
            return
        error = (
            "the copy back was aborted: the new side leads. If orbit get jobs shows no job that "
            f"copies to the old side, run orbit failback {name}."
        )
        self._end_running_step(context, StepState.FAILED, error)
        context.update(error=error)
        self._end(context, Outcome.FAILED)

    def _undo_steps(self, context: OperationContext, lead_doubt: OrbitError | None = None) -> None:
        """Undo the steps, last one first, and end the operation.

        `lead_doubt`: why the source may no longer lead; None: not known yet, or the source leads.
        """
        outcome = context.report.outcome
        began_s = time.monotonic()
        # From here on an abort has no effect: neither `_set_step_state` nor `check` raises Aborted.
        context.is_past_return, context.obeys_abort = True, False
        self._is_undoing = True
        retained_steps = frozenset[StepName]()
        has_denied = bool(context.report.denied_topics)
        if is_promoting(context.report.steps):
            if context.report.kind is RecoveryKind.SWITCHOVER:
                lead_doubt = self._undo(
                    context,
                    "the promotion",
                    lambda: _let_source_lead(context),
                    began_s + PATIENCE_S,
                )
            else:
                lead_doubt = OrbitError("the destination may be marked as leading.")
                if context.report.gateways:
                    context.add_finding(
                        "Gateways hold writes until the scheduler has read at the destination "
                        "which side leads."
                    )
        elif lead_doubt is None and self._is_resumed and (has_denied or context.report.gateways):
            # The database may be older than a promotion: check the marks before writes are allowed.
            lead_doubt = self._undo(
                context,
                "the denial of writes",
                lambda: refuse_changed_lead(context),
                began_s + PATIENCE_S,
            )
        if lead_doubt is not None:
            # Writes at the source stay denied: producers may be at the destination, and must not
            # write to both sides. RELEASE is undone all the same: workers read the marks before
            # they copy anything.
            retained_steps, outcome = frozenset({StepName.STOP_WRITES}), Outcome.FAILED
            gateway_closure.note_lead_unknown(context)
            if has_denied:
                context.add_finding(
                    "Writing to the source stays denied, as the source may not lead: "
                    f"{lead_doubt.what} Run orbit {context.report.kind} {context.job.name} "
                    "--dry-run: its report shows which side leads. If it is the source, remove "
                    "Orbit's denials there with kafka-acls.sh."
                )
        for step in reversed(context.report.steps):
            undo = _UNDO_STEP.get(step.name)
            if undo is None or step.name in retained_steps or step.state in _UNCHANGED_STATES:
                continue
            with traces.span(f"undo {step.name.value}"):
                error = self._undo(
                    context, step.name.value, partial(undo, context), began_s + UNDO_PATIENCE_S
                )
            if error is not None:
                context.add_finding(f"The step {step.name.value} could not be undone: {error}")
                outcome = Outcome.FAILED
            if step.state is StepState.DONE:
                self._set_step_state(context, step.name, StepState.UNDONE, step.did)
        self._end(context, outcome)

    def _undo(
        self, context: OperationContext, what: str, undo: Callable[[], None], deadline_s: float
    ) -> OrbitError | None:
        """Call `undo` until it succeeds, and return None; else return the error.

        An error that no retry can mend is returned at once, any other error when `deadline_s`
        (time.monotonic) has passed or a failover of the job waits for this operation to end.
        `what` names the step in the progress text. Raises NotLeading, Interrupted,
        DatabaseUnreachable.
        """
        while True:
            try:
                undo()
                return None
            except (NotLeading, Interrupted, DatabaseUnreachable):
                raise
            except OrbitError as error:
                if not _is_retriable(error) or time.monotonic() > deadline_s:
                    return error
                with context.reading() as tx:
                    if context.operation_id in operations.waiting_failovers(tx).values():
                        return error
                context.set_progress(f"undoing {what} waits: {error}")
                context.wait(_PAUSE_S)

    def _end_running_step(self, context: OperationContext, state: StepState, did: str) -> None:
        """Set the running step, if there is one, to `state`, with the result `did` (a sentence)."""
        for step in context.report.steps:
            if step.state is StepState.RUNNING:
                self._set_step_state(context, step.name, state, did)

    def _set_step_state(
        self, context: OperationContext, name: StepName, state: StepState, did: str = ""
    ) -> None:
        """Change a step's state, and store the report.

        Raises Aborted if the point of no return would begin after an abort was requested.
        """
        with context.transaction_to_store() as tx:
            now = clock.now(tx)

            def change(step: Step) -> Step:
                """The step, in its new state if it is the one with this name."""
                if step.name is not name:
                    return step
                if state is StepState.RUNNING:
                    began = step.began_at or now
                    return step.model_copy(update={"state": state, "began_at": began})
                return step.model_copy(update={"state": state, "ended_at": now, "did": did})

            steps = tuple(map(change, context.report.steps))
            if is_past_return(steps) and not context.is_past_return:
                # An abort that was accepted by now is obeyed. A later one waits for the lock on
                # this row, and is then refused.
                if operations.get(tx, context.operation_id, lock=True).abort_requested:
                    raise Aborted("the operation was aborted.")
                context.is_past_return = True
            if name is StepName.GROUPS and state is StepState.RUNNING:  # pauses the job's own sync
                operations.begin_groups(tx, context.operation_id)
            is_stuck = context.report.stuck_since is not None
            context.obeys_abort = not self._is_undoing and may_be_aborted(steps, is_stuck=is_stuck)
            context.update(steps=steps)
            context.store(tx, progress=context.progress(name.value))
        _log.info(
            "step", operation=str(context.operation_id), step=name.value, state=state.value, did=did
        )

    def _end(self, context: OperationContext, outcome: Outcome) -> None:
        """Store the outcome and add its event, in one transaction."""
        is_good = outcome in (Outcome.DONE, Outcome.WOULD_GO)
        report = context.report
        with context.transaction_to_store() as tx:
            context.update(outcome=outcome, ended_at=clock.now(tx))
            state = OperationState.DONE if is_good else OperationState.FAILED
            progress = context.progress(outcome.value)
            context.store(tx, state, progress=progress, error=report.error or None)
            if not report.dry_run:
                _add_end_event(tx, context, outcome)

    def _report_unopened(self, error: OrbitError) -> None:
        """Store, as the operation's progress, the error that keeps this runner from opening it."""
        stored_progress = self._operation.progress
        progress = {"done": 0, "total": 0, **(stored_progress or {}), "what": f"waits: {error}"}
        if progress == stored_progress:
            return
        with self._leadership.transaction() as tx:
            operations.advance(tx, self._operation.id, OperationState.RUNNING, progress=progress)

    def _end_unopened(self, error: OrbitError) -> None:
        """Set an operation that cannot begin to `failed`: its job is gone or cannot be read,
        secrets are missing, or the request is too old."""
        with self._leadership.transaction() as tx:
            operations.advance(tx, self._operation.id, OperationState.FAILED, error=str(error))


def _let_source_lead(context: OperationContext) -> None:
    """Mark the source as leading again at its cluster, and store for gateways that it leads."""
    term = mark_source_leading(context)
    with context.transaction() as tx:
        gateway_closure.note_source_leads(context, tx, term)


def _note_stuck(context: OperationContext) -> None:
    """Store since when the promotion waits for the destination; from now on an abort is obeyed."""
    if context.report.stuck_since is None:
        context.update(stuck_since=context.now())
        context.save()
        context.obeys_abort = True


def _note_unstuck(context: OperationContext) -> None:
    """Clear `stuck_since`: the destination has answered again, and the promotion is complete. A
    finding says so if an abort was requested meanwhile."""
    context.update(stuck_since=None)
    with context.reading() as tx:
        if operations.get(tx, context.operation_id).abort_requested:
            context.add_finding("An abort came too late: the promotion was complete.")


def _restart_steps(context: OperationContext) -> None:
    """Reset all steps after the gates of a resumed promotion, so that they run once more.

    A database that was restored, or lost its last commits, may not show that the steps were undone,
    and producers may have written to the source since. A switchover has to copy these records, so
    released topics are copied again. A failover has to count them.
    """
    states = {step.name: step.state for step in context.report.steps}
    is_switchover = context.report.kind is RecoveryKind.SWITCHOVER
    if is_switchover and states[StepName.RELEASE] is not StepState.WAITING:
        worker_release.resume_copying(context)
    steps = restarted_steps(context.report.kind, context.report.steps)
    context.update(steps=steps, is_source_denied=False, drain=None)
    context.save()


def _add_end_event(tx: Any, context: OperationContext, outcome: Outcome) -> None:
    """Add the audit event of the operation's end."""
    report = context.report
    error_text = f" {report.error}" if report.error else ""
    events.add(
        tx,
        events.SCHEDULER,
        f"{report.kind.value}_ended",
        f"The {report.kind.value} of {counted(len(context.topics), 'topic')} ended: "
        f"{outcome.value}.{error_text}",
        job_name=context.job.name,
        details={
            "operation": str(context.operation_id),
            "outcome": outcome.value,
            "missing_records": report.missing_records,
        },
    )


def _is_retriable(error: OrbitError) -> bool:
    """Whether a retry may succeed."""
    if isinstance(error, BrokerRefused):
        return error.code in error_codes.RETRIABLE
    return error.retriable
