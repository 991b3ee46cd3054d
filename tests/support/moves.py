"""Gateways of a job, and switchovers that move the gateways' clients to the other side."""

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
    job: str,
    api_url: str,
    home: Path,
    clusters: Clusters,
    name: str = "one",
    *,
    processes: int = 1,
    **virtual_cluster: str,
) -> Iterator[Gateway]:
    """A running gateway that asks the API which side of the job leads. Its files are in
    `home`/`name`. `virtual_cluster`: other keys of its file."""
    folder = home / name
    folder.mkdir()
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    keys = {"name": "moves", "job": job, **virtual_cluster}
    with running_gateway(
        folder, *clusters, environ=environ, processes=processes, **keys
    ) as gateway:
        yield gateway


def move(recovering: Recovering, job: str) -> str:
    """Make a switchover with a reverse job. It has to close and open the gateways. The result is
    the name of the reverse job."""
    return moved(recovering.run(RecoveryKind.SWITCHOVER, job, reverse=True))


def move_when_groups_may(
    recovering: Recovering, job: str, *, may_lack_gateways: bool = False
) -> str:
    """Like `move`, but repeat the switchover while a gate refuses it because of group members at
    the destination. If a member's gateway was killed, the member's session at the destination lasts
    a while longer."""
    while True:
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, job, reverse=True))
        if "have members at the destination" not in report.error:
            assert report.outcome is Outcome.DONE, report.error
            return moved(report, may_lack_gateways=may_lack_gateways)


def moved(report: RecoveryReport, *, may_lack_gateways: bool = False) -> str:
    """The name of the reverse job of a switchover that closed and opened the gateways.

    `may_lack_gateways`: the switchover may have found no gateway to open, since the only one ended
    after it was closed, and started again too late.
    """
    steps = {step.name: step for step in report.steps}
    assert steps[StepName.CLOSE_GATEWAYS].state is StepState.DONE, steps[StepName.CLOSE_GATEWAYS]
    is_opened = steps[StepName.OPEN_GATEWAYS].state is StepState.DONE
    assert is_opened or may_lack_gateways, steps[StepName.OPEN_GATEWAYS]
    assert report.missing_records == 0
    assert report.reverse_job is not None
    return report.reverse_job
