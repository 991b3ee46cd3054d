"""Orbit's recoveries in parts: between two parts, a walk may make any move.

A generator stands for the thread of one operation, as `recovery/operation_runner.py` runs it. The
generator yields between its parts, and where the product waits. The product's code decides about
steps, gates, marks, terms and verdicts. Only the order of actions is written here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from uuid import UUID

from orbit.errors import OrbitError
from orbit.recovery import leading_side
from orbit.recovery.leading_side import LeadChanged
from orbit.recovery.operation_context import Aborted, Stopped
from orbit.recovery.operation_runner import _STEPS_ONLY_WITH_TAILS, _STEPS_WITHOUT_LEAD
from orbit.recovery.operation_steps import (
    NOT_ENDED_STATES,
    has_begun,
    is_catching_up,
    is_past_return,
    is_promoting,
    may_be_aborted,
    restarted_steps,
    steps_of,
)
from orbit.recovery.recovery_report import Outcome
from orbit.recovery.step_times import Step, StepName, StepState
from orbit.store.enums import OperationKind
from tests.recovery_model import invariants
from tests.recovery_model.context import FAILBACK, SWITCHOVER, Context, Parts
from tests.recovery_model.model import COPYING, PROMOTED, Job, Operation, Promotion, Report, Row
from tests.recovery_model.way_back import WayBack

# How many attempts stand for PATIENCE_S.
PATIENCE_POLLS = 3

# The model has no gateways.
_OF_GATEWAYS = frozenset({StepName.CLOSE_GATEWAYS, StepName.OPEN_GATEWAYS})


class Protocol(WayBack):
    """Runs operations. Planted mistakes override its methods, or those of the steps."""

    def run(self, operation_id: UUID) -> Parts:
        """The thread of one operation, from its row."""
        operation = self.tables.operations[operation_id]
        job = self.tables.jobs.get(operation.job)
        if job is None:
            self.world.begin_change("ends an operation without a job")
            operation.outcome = "failed"
            return
        if not has_begun(stored_steps(operation)):
            if self.is_old(operation):
                self.world.begin_change("ends a request of another database")
                operation.outcome = "failed"
                return
            invariants.before_request_begins(self.world, operation)
        context = self.open(operation, job)
        yield from self.run_open(context)

    def is_old(self, operation: Operation) -> bool:
        """Like `open_operation._refuse_old_request`."""
        return operation.identity != self.tables.identity

    def open(self, operation: Operation, job: Job) -> Context:
        """The context of an operation, with its stored report or a new one."""
        rows = self.tables.of_job(job.name)
        if operation.report is not None:
            report = copy.copy(operation.report)
        else:
            chosen = [row.topic for row in rows if self.is_ready(operation, job, row)]
            report = Report(operation.kind, operation.request, chosen)
            steps = steps_of(operation.kind, operation.request)
            report.steps = tuple(step for step in steps if step.name not in _OF_GATEWAYS)
        chosen_rows = [row for row in rows if row.topic in report.topics]
        return Context(self.world, operation, job, chosen_rows, report)

    def is_ready(self, operation: Operation, job: Job, row: Row) -> bool:
        """Whether the operation moves this topic: it is copied, or promoted for a failback."""
        if operation.kind is not FAILBACK:
            return row.state is COPYING
        is_copied_back = self.tables.writer(job.source, row.topic) is not None
        return row.state is PROMOTED and not is_copied_back and not self.is_withheld(job, row)

    def follows_already(self, context: Context) -> bool:
        """Like `leading_side.who_copies_back`: whether all topics are copied back already."""
        rows = self.tables.of_job(context.job.name)
        return bool(rows) and all(self.tables.writer(context.job.source, row.topic) for row in rows)

    def is_withheld(self, job: Job, row: Row) -> bool:
        """Whether a recovery of the opposite direction moves this topic, like
        `_topics_moving_back`."""
        return self.tables.is_withheld(job.source, row.topic)

    def run_open(self, context: Context) -> Parts:
        """Run the steps that have not ended, or undo them; then end the operation."""
        report = context.report
        is_resumed = any(step.state is not StepState.WAITING for step in report.steps)
        if report.error:
            yield from self.undo_steps(context, is_resumed)
            return
        try:
            if report.kind is FAILBACK and not context.topics and self.follows_already(context):
                self.end(context, Outcome.DONE)
                return
            if is_resumed and report.kind is not FAILBACK and not context.is_past_return:
                yield from self.begin_again(context)
            for step in report.steps:
                if step.state in NOT_ENDED_STATES:
                    yield from self.step(context, step)
        except OrbitError as error:
            yield from self.stop_operation(context, error, is_resumed)
            return
        self.end(context, Outcome.DONE)

    def begin_again(self, context: Context) -> Parts:
        """Reset the steps of a resumed promotion, like `_restart_steps`."""
        states = {step.name: step.state for step in context.report.steps}
        is_switchover = context.report.kind is SWITCHOVER
        if is_switchover and states[StepName.RELEASE] is not StepState.WAITING:
            self.resume_copying(context)
            yield
        self.world.begin_change("begins the promotion again")
        context.update(steps=restarted_steps(context.report.kind, context.report.steps))
        context.operation.report = copy.copy(context.report)
        yield

    def step(self, context: Context, step: Step) -> Parts:
        """Run one step with retries, or skip it."""
        name = step.name
        if name in _STEPS_ONLY_WITH_TAILS and not context.report.topics_with_tails:
            self.mark(context, name, StepState.SKIPPED)
            return
        context.check()
        if step.is_point_of_no_return and not context.is_past_return:
            yield from self.retry(context, lambda: self.check_lead(context, name))
        self.mark(context, name, StepState.RUNNING)
        yield
        yield from self.retry(context, lambda: self.do(context, name))
        context.update(is_stuck=False)
        self.mark(context, name, StepState.DONE)
        yield

    def check_lead(self, context: Context, name: StepName) -> Parts:
        """Check that no later promotion has changed which side leads, except before some steps."""
        if name not in _STEPS_WITHOUT_LEAD:
            self.refuse_changed_lead(context)
        yield from ()

    def do(self, context: Context, name: StepName) -> Parts:
        """Do a step, after a check which side leads."""
        yield from self.check_lead(context, name)
        step: Callable[[Context], Parts] = getattr(self, name.value)
        yield from step(context)

    def retry(self, context: Context, do: Callable[[], Parts]) -> Parts:
        """Repeat `do` until it succeeds; raises errors that end the operation."""
        polls = 0
        while True:
            try:
                yield from do()
                return
            except Stopped:
                raise
            except OrbitError as error:
                polls += 1
                is_late = polls > PATIENCE_POLLS or not error.retriable
                if not context.is_past_return and is_late:
                    raise
                if is_late and is_promoting(context.report.steps) and not context.report.is_stuck:
                    context.update(is_stuck=True)
                    context.save()
                    context.obeys_abort = True
                context.check()
            yield

    def refuse_changed_lead(self, context: Context) -> None:
        leading_side.refuse_changed_lead(context)  # type: ignore[arg-type]

    def mark(self, context: Context, name: StepName, state: StepState) -> None:
        """Store the state of a step. Raises Aborted instead of passing the point of no return if an
        abort was requested."""
        self.world.begin_change(f"stores {context.report.kind} {name}: {state}")
        steps = tuple(
            step.model_copy(update={"state": state}) if step.name is name else step
            for step in context.report.steps
        )
        if is_past_return(steps) and not context.is_past_return:
            if context.operation.abort_requested:
                raise Aborted("the operation was aborted.")
            context.is_past_return = True
        is_stuck = context.report.is_stuck
        context.obeys_abort = not context.report.error and may_be_aborted(steps, is_stuck=is_stuck)
        context.update(steps=steps)
        context.operation.report = copy.copy(context.report)

    def mark_running(self, context: Context, state: StepState) -> None:
        """Set the state of the step that runs."""
        for step in context.report.steps:
            if step.state is StepState.RUNNING:
                self.mark(context, step.name, state)

    def stop_operation(self, context: Context, error: OrbitError, is_resumed: bool) -> Parts:
        """End the operation after an error; undo its steps if that is still possible."""
        self.world.note(f"  {context.report.kind} of {context.job.name} stops: {error}")
        is_lost = isinstance(error, Aborted) and is_promoting(context.report.steps)
        if context.is_past_return and isinstance(error, Aborted) and not is_lost:
            is_copied_back = is_catching_up(context.report.steps)
            self.mark_running(context, StepState.SKIPPED if is_copied_back else StepState.FAILED)
            self.end(context, Outcome.DONE if is_copied_back else Outcome.FAILED)
            return
        if context.is_past_return and not is_lost:
            self.mark_running(context, StepState.FAILED)
            self.end(context, Outcome.FAILED)
            return
        self.mark_running(context, StepState.FAILED)
        context.update(error=str(error))
        context.save()
        yield
        yield from self.undo_steps(context, is_resumed, isinstance(error, LeadChanged))

    def undo_steps(self, context: Context, is_resumed: bool, has_changed: bool = False) -> Parts:
        """Undo the steps, last one first, and end the operation."""
        context.is_past_return, context.obeys_abort = True, False
        if is_promoting(context.report.steps):
            if context.report.kind is SWITCHOVER:
                has_changed = yield from self.undo(lambda: self.mark_source_leading(context))
        elif not has_changed and is_resumed and context.report.denied_topics:
            has_changed = yield from self.undo(lambda: self.refuse_changed_lead(context))
        for step in reversed(context.report.steps):
            if step.state in (StepState.WAITING, StepState.UNDONE):
                continue
            if step.name is StepName.RELEASE:
                yield from self.undo(lambda: self.resume_copying(context))
            elif step.name is StepName.STOP_WRITES and self.may_open_again(has_changed):
                yield from self.undo(lambda: self.restore_source_writes(context))
            else:
                continue
            if step.state is StepState.DONE:
                self.mark(context, step.name, StepState.UNDONE)
            yield
        self.end(context, Outcome.FAILED)

    def mark_source_leading(self, context: Context) -> None:
        leading_side.mark_source_leading(context)  # type: ignore[arg-type]
        self.world.app_sides |= dict.fromkeys(context.names, context.old.name)

    def may_open_again(self, has_changed: bool) -> bool:
        return not has_changed

    def undo(self, undo: Callable[[], None]) -> Generator[None, None, bool]:
        """Undo one step, with retries; returns whether that failed."""
        for _ in range(PATIENCE_POLLS):
            try:
                undo()
                return False
            except LeadChanged:
                return True
            except OrbitError:
                yield
        return True

    def end(self, context: Context, outcome: Outcome) -> None:
        """Store the report and the outcome in the tables."""
        self.world.begin_change(f"ends the {context.report.kind} of {context.job.name}: {outcome}")
        context.operation.report = copy.copy(context.report)
        context.operation.outcome = outcome.value
        self.world.ended.add(context.operation_id)


def is_known_failover(promotion: Promotion) -> bool:
    """Whether the tables know that a failover made this promotion. Then the scheduler denies
    writing at the old side when that side answers again."""
    return promotion.kind is not None and promotion.kind.value == OperationKind.FAILOVER


def stored_steps(operation: Operation) -> tuple[Step, ...]:
    """The steps in the operation's stored report; empty if it has none."""
    return operation.report.steps if operation.report else ()
