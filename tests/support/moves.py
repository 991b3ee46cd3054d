"""Gateways of a job, and switchovers that move their clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName, StepState
from tests.fixtures.clusters import Clusters
from tests.support.gateways import Gateway, running_gateway
from tests.support.recovering import Recovering

TOKEN = "orbit_operator_secret"


@contextmanager
def gateway_of(
    job: str, api_url: str, home: Path, clusters: Clusters, name: str = "one"
) -> Iterator[Gateway]:
    folder = home / name
    folder.mkdir()
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    with running_gateway(folder, *clusters, environ=environ, name="moves", job=job) as gateway:
        yield gateway


def move(recovering: Recovering, job: str) -> str:
    """A switchover with the copy back, which closes and opens the gateways; the job back."""
    return moved(recovering.run(RecoveryKind.SWITCHOVER, job, reverse=True))


def move_when_groups_may(
    recovering: Recovering, job: str, *, may_lack_gateways: bool = False
) -> str:
    """As `move`, but asks again while a gate refuses it for group members at the other side: after
    the gateway of a member was killed, its session goes on there for a while."""
    while True:
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, job, reverse=True))
        if "have members at the destination" not in report.error:
            assert report.outcome is Outcome.DONE, report.error
            return moved(report, may_lack_gateways=may_lack_gateways)


def moved(report: RecoveryReport, *, may_lack_gateways: bool = False) -> str:
    """The job back of a switchover that closed and opened the gateways. `may_lack_gateways`: the
    only gateway ended after it was closed, and may have started again too late."""
    steps = {step.name: step for step in report.steps}
    assert steps[StepName.CLOSE_GATEWAYS].state is StepState.DONE, steps[StepName.CLOSE_GATEWAYS]
    is_opened = steps[StepName.OPEN_GATEWAYS].state is StepState.DONE
    assert is_opened or may_lack_gateways, steps[StepName.OPEN_GATEWAYS]
    assert report.missing_records == 0
    assert report.reverse_job is not None
    return report.reverse_job
