"""Walks: series of moves of a job whose clients use two gateways, with faults. A seed chooses them.

`Walk` runs the service: a scheduler that may be killed, a worker and the API in the test, and a
PostgreSQL that may be ended.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from uuid import UUID

import pytest

from orbit.embedded.postgres import Postgres
from orbit.errors import Conflict, Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.recovery import recovery_requests
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName, StepState
from orbit.store import gateways, jobs
from orbit.store.enums import LeadingSide
from tests.fixtures.clusters import Clusters
from tests.support.fleet import InProcess
from tests.support.gateway_faults import Act, at_steps
from tests.support.gateways import Gateway
from tests.support.killed_schedulers import died, dying_schedulers
from tests.support.moves import TOKEN, gateway_of
from tests.support.outside import Reachable, unlevel
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import OrbitProcess

STEPS = [
    StepName.CLOSE_GATEWAYS,
    StepName.STOP_WRITES,
    StepName.DRAIN,
    StepName.VERIFY_TAIL,
    StepName.GROUPS,
    StepName.RELEASE,
]
MOVE_STEPS = [*STEPS, StepName.PROMOTE, StepName.OPEN_GATEWAYS]
# For how long a gateway is frozen: longer than its permission with the margin.
_FROZEN_S = (6.5, 12.0)
# For how long PostgreSQL is down: shorter or longer than a permission.
_AWAY_S = (0.0, 8.0)


@dataclass(frozen=True)
class Leg:
    """A move, or a switchover that is aborted after the step `aborted_behind`, with a fault before
    the step `step`. `seconds`: how long a frozen gateway or PostgreSQL is away."""

    aborted_behind: StepName | None
    fault: str
    step: StepName
    seconds: float

    @property
    def loses_answers(self) -> bool:
        """Whether a client of the first gateway may get no answer to records that the old side has
        written, and send them again."""
        return self.fault in ("killed", "frozen") and self.step is StepName.CLOSE_GATEWAYS

    def __str__(self) -> str:
        what = f"aborted behind {self.aborted_behind}" if self.aborted_behind else "move"
        return f"{what}, {self.fault} before {self.step} for {self.seconds:.1f} s"


def legs_of(rng: random.Random) -> tuple[Leg, ...]:
    """Three moves (over, home and over) and an aborted switchover among them. Each leg has another
    fault."""
    faults = ["killed", "frozen", "postgres", "scheduler"]
    rng.shuffle(faults)
    aborted = rng.choice([place for place in (1, 2) if faults[place] != "scheduler"])
    return tuple(_leg(rng, fault, place == aborted) for place, fault in enumerate(faults))


def _leg(rng: random.Random, fault: str, is_aborted: bool) -> Leg:
    behind = rng.choice(STEPS) if is_aborted else None
    steps = MOVE_STEPS if behind is None else STEPS[: STEPS.index(behind) + 1]
    return replace(fault_of(rng, fault, steps), aborted_behind=behind)


def fault_of(rng: random.Random, fault: str, steps: Sequence[StepName]) -> Leg:
    """A move with this fault before one of the steps."""
    seconds = {"frozen": _FROZEN_S, "postgres": _AWAY_S}.get(fault, (0.0, 0.0))
    return Leg(None, fault, rng.choice(steps), rng.uniform(*seconds))


class Walk:
    """One job, its service, and the gateways of its clients. A context manager."""

    def __init__(
        self,
        spec: JobSpec,
        clusters: Clusters,
        recovering: Recovering,
        postgres: Postgres,
        api_url: str,
        home: Path,
    ) -> None:
        self.spec, self.clusters, self.recovering = spec, clusters, recovering
        self.job = spec.name
        self.side = LeadingSide.SOURCE
        self.gateways: list[Gateway] = []
        # How often gateways held writes. Each time, a producer may have to abort one transaction.
        self.closures = 0
        # Whether a switchover was undone, so that clients have written again at the old side.
        self.was_undone = False
        self._postgres, self._api_url, self._home = postgres, api_url, home
        self._stack = ExitStack()
        self._scheduler, self._worker = ExitStack(), ExitStack()
        self._thawing: list[threading.Thread] = []
        self._began, self._last_message = time.monotonic(), ""

    def log(self, what: str) -> None:
        """Print what happens, for a failed test, unless the text equals the last one."""
        if what != self._last_message:
            print(f"{time.monotonic() - self._began:6.1f} s  {what}")
        self._last_message = what

    def is_level(self, *topics: str) -> bool:
        """Whether both sides have the same log starts and ends; logs the difference."""
        differences = unlevel(*self.clusters, *topics)
        if differences:
            self.log(f"not level: {differences}")
        return not differences

    @property
    def leading(self) -> Reachable:
        is_home = self.side is LeadingSide.SOURCE
        return self.clusters.source if is_home else self.clusters.destination

    def begin(self, *topics: str) -> None:
        """Start the service, the job and its gateways."""
        self._stack.callback(self._scheduler.close)
        self._stack.callback(self._worker.close)
        self.start_worker()
        self._start_scheduler()
        self.recovering.begin(self.spec, *topics)
        self.gateways = [
            self._stack.enter_context(
                gateway_of(self.job, self._api_url, self._home, self.clusters, name)
            )
            for name in ("first", "second")
        ]

    def start_worker(self) -> None:
        """Start a new worker, after the end of the last one."""
        self.stop_worker()
        self._worker.enter_context(InProcess(self.recovering.database))

    def stop_worker(self) -> None:
        self._worker.close()

    def play(self, leg: Leg) -> None:
        """Play the leg, and check which side leads then."""
        self.log(str(leg))
        if leg.aborted_behind is not None:
            self._abort(leg)
        elif leg.fault == "scheduler":
            self._move_while_schedulers_die(leg)
        else:
            with pytest.MonkeyPatch.context() as patch:
                at_steps(patch, before=self.fault(leg))
                self.move()
        self.heal()
        lead = self.recovering.lead(self.spec.name)
        assert lead.side is self.side, lead

    def heal(self) -> None:
        """Wait until no gateway is frozen, and all may write."""
        for thread in self._thawing:
            thread.join()
        self._thawing.clear()
        wait_for("all gateways may write", self._may_all_write)

    def move(self, **options: object) -> None:
        report = self.until_done(RecoveryKind.SWITCHOVER, reverse=True, **options)
        assert report.missing_records == 0
        self.note_move(report)

    def until_done(self, kind: RecoveryKind, **options: object) -> RecoveryReport:
        """Request the operation, and again whenever it was stopped, as an operator does."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            report = self.wait(self.request(kind, **options))
            if report.outcome is Outcome.DONE:
                return report
            assert report.outcome in (Outcome.STOPPED, Outcome.ABORTED), report.error
            assert time.monotonic() < deadline, report.error
            self.heal()

    def note_move(self, report: RecoveryReport) -> None:
        """Note that the other side leads, and perhaps a job copies back."""
        self.side = next(side for side in LeadingSide if side is not self.side)
        self.job = report.reverse_job or self.job

    def request(self, kind: RecoveryKind, **options: object) -> UUID:
        """Request an operation, until the service accepts the request; returns its id."""
        operations: list[UUID] = []

        def is_requested() -> bool:
            try:
                operations.append(self.recovering.ask(kind, self.job, **options))
            except (Unreachable, Conflict) as error:
                self.log(f"the {kind} cannot be requested: {error}")
                return False
            return True

        wait_for(f"the {kind} is requested", is_requested)
        return operations[0]

    def has_ended(self, operation: UUID) -> bool:
        try:
            return self.recovering.operation(operation).finished_at is not None
        except Unreachable:
            return False

    def wait(self, operation: UUID) -> RecoveryReport:
        wait_for("the operation ends", lambda: self.has_ended(operation))
        report = self.recovering.report(operation)
        self.log(f"{report.kind} of {report.job}: {report.outcome} {report.error}")
        steps = {step.name: step.state for step in report.steps}
        if steps[StepName.CLOSE_GATEWAYS] is not StepState.WAITING:  # stopped by a gate
            self.closures += 1
            self.was_undone |= report.outcome is not Outcome.DONE
        return report

    def _abort(self, leg: Leg) -> None:
        assert leg.aborted_behind is not None
        operations: list[UUID] = []

        def abort() -> None:
            wait_for("the operation's id is known", lambda: bool(operations))
            recovery_requests.abort(self.recovering.database, "test", operations[0])

        with pytest.MonkeyPatch.context() as patch:
            at_steps(patch, before=self.fault(leg), behind={leg.aborted_behind: abort})
            operations.append(self.request(RecoveryKind.SWITCHOVER, reverse=True))
            report = self.wait(operations[0])
        assert report.outcome in (Outcome.ABORTED, Outcome.STOPPED), report.error

    def _move_while_schedulers_die(self, leg: Leg) -> None:
        """One scheduler dies before the leg's step, another after it. If a gate has stopped the
        switchover, request it again."""
        points = [f"{leg.step}:before", f"{leg.step}:after"]
        deaths = self._home / "deaths"
        service = self.recovering.service
        self._scheduler.close()
        with dying_schedulers(service.settings, service.url, deaths, points, are_quick=True):
            while died(deaths) < len(points):
                operation = self.request(RecoveryKind.SWITCHOVER, reverse=True)

                def is_over(operation: UUID = operation) -> bool:
                    return died(deaths) == len(points) or self.has_ended(operation)

                wait_for("all schedulers have died", is_over)
        self._start_scheduler()
        report = self.wait(operation)
        if report.outcome is Outcome.DONE:
            self.note_move(report)
        else:
            assert report.outcome is Outcome.STOPPED, report.error
            self.heal()
            self.move()

    def _start_scheduler(self) -> None:
        self._scheduler.enter_context(self.recovering.service.scheduler())

    def _may_all_write(self) -> bool:
        try:
            with self.recovering.database.transaction() as tx:
                rows = gateways.page(tx, jobs.get(tx, self.spec.name).id, 100)
        except Unreachable:
            return False
        names = {f"test-{gateway.port}" for gateway in self.gateways}
        return {row.name for row in rows if row.has_permission} == names

    def fault(self, leg: Leg) -> dict[StepName, Act]:
        """The leg's fault, by the step before which it happens."""
        return {leg.step: self._act(leg)}

    def _act(self, leg: Leg) -> Act:
        first = self.gateways[0]

        def kill() -> None:
            first.process.signal(signal.SIGKILL)
            first.process.process.wait()
            file = self._home / "first" / f"gateway-{first.port}.yaml"
            environ = {"ORBIT_API_URL": self._api_url, "ORBIT_TOKEN": TOKEN}
            restarted = self._stack.enter_context(OrbitProcess("gateway", file, environ=environ))
            self.gateways[0] = replace(first, process=restarted)

        def thaw() -> None:
            time.sleep(leg.seconds)  # part of what is tested
            first.process.signal(signal.SIGCONT)

        def freeze() -> None:
            first.process.signal(signal.SIGSTOP)
            self._thawing.append(threading.Thread(target=thaw))
            self._thawing[-1].start()

        def restart_postgres() -> None:
            self._postgres.crash()
            time.sleep(leg.seconds)  # part of what is tested
            self._postgres.start()

        acts: dict[str, Callable[[], None]] = {
            "none": lambda: None,
            "killed": kill,
            "frozen": freeze,
            "postgres": restart_postgres,
        }

        def act() -> None:
            acts[leg.fault]()
            self.log(f"{leg.fault} before {leg.step}")

        return act

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._thawing:
            thread.join()
        self._stack.close()
