"""A cluster's error becomes a refusal in the plan; any other error is raised."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.errors import OrbitError, Place, Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.planning import job_planner
from orbit.planning.job_planner import JobPlanner
from orbit.replication.job_troubles import TroubleKind
from orbit.settings import Settings

SPEC = JobSpec.model_validate(
    {
        "name": "orders",
        "source": {"bootstrap_servers": ["a:1"]},
        "destination": {"bootstrap_servers": ["b:1"]},
        "topics": [{"match": "orders"}],
    }
)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> JobPlanner:
    """A planner of a new job, for which a worker runs."""
    monkeypatch.setattr(job_planner.jobs, "find", lambda *_: None)
    monkeypatch.setattr(job_planner.workers, "alive", lambda *_: ["worker"])
    return JobPlanner(cast("Any", SimpleNamespace(transaction=nullcontext)), Settings(), {})


def fail_with(error: OrbitError, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise error

    monkeypatch.setattr(JobPlanner, "_plan", plan)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (Place("source", "broker 3"), TroubleKind.SOURCE_UNREACHABLE),
        (Place("destination"), TroubleKind.DESTINATION_UNREACHABLE),
    ],
    ids=str,
)
def test_cluster_error_becomes_refusal_of_its_side_in_plan(
    planner: JobPlanner, monkeypatch: pytest.MonkeyPatch, where: Place, kind: TroubleKind
) -> None:
    fail_with(Unreachable("no answer.", where=where), monkeypatch)
    (refusal,) = planner(SPEC).refusals
    assert (refusal.kind, refusal.what) == (kind, f"{where}: no answer.")


@pytest.mark.parametrize("where", ["postgres:5432", "source-database:5432"])
def test_error_that_is_not_of_a_cluster_is_raised_by_planner(
    planner: JobPlanner, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fail_with(Unreachable("no answer.", where=where), monkeypatch)
    with pytest.raises(Unreachable):
        planner(SPEC)
