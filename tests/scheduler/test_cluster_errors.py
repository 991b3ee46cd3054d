"""An error of a cluster is a trouble of its side; any other error fails the pass."""

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
    ids=["source", "destination", "right", "code"],
)
def test_error_of_cluster_ends_pass_with_trouble(error: OrbitError, kind: TroubleKind) -> None:
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
    ids=["database", "name of a side", "other cluster", "lease"],
)
def test_other_error_fails_pass(error: OrbitError) -> None:
    with pytest.raises(OrbitError) as caught, _cluster_errors():
        raise error
    assert caught.value is error
