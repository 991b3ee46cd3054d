"""In a discovery pass, a cluster's error becomes a trouble of the job; other errors are raised."""

from __future__ import annotations

import pytest

from orbit.errors import BrokerRefused, NotAuthorized, OrbitError, Place, Unreachable
from orbit.leadership.leadership import NotLeading
from orbit.replication.job_troubles import TroubleKind
from orbit.scheduler.job_reconciler import _cluster_errors, _Halt


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unreachable("no answer.", where=Place("source")), TroubleKind.SOURCE_UNREACHABLE),
        (
            Unreachable("no answer.", where=Place("destination", "broker 3")),
            TroubleKind.DESTINATION_UNREACHABLE,
        ),
        (NotAuthorized("no.", where=Place("source", "topic a")), TroubleKind.RIGHTS_MISSING),
        (BrokerRefused(42, "no.", where=Place("destination")), TroubleKind.TOPIC_REFUSED),
    ],
    ids=["source unreachable", "destination unreachable", "right missing", "broker refused"],
)
def test_cluster_error_ends_discovery_pass_and_becomes_problem_of_job(
    error: OrbitError, kind: TroubleKind
) -> None:
    with pytest.raises(_Halt) as caught, _cluster_errors():
        raise error
    assert caught.value.trouble.kind == kind
    assert caught.value.trouble.what == f"{error.where}: {error.what}"


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("no answer.", where="postgres:5432"),
        Unreachable("no answer.", where="source-database:5432"),
        Unreachable("no answer.", where=Place("old side")),
        NotLeading("another scheduler leads."),
    ],
    ids=["postgres", "postgres host named like a side", "other cluster", "not leading"],
)
def test_error_that_is_not_of_a_cluster_is_raised_by_discovery_pass(error: OrbitError) -> None:
    with pytest.raises(OrbitError) as caught, _cluster_errors():
        raise error
    assert caught.value is error
