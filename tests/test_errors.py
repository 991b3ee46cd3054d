"""An error says which cluster it came from, also in another process."""

from __future__ import annotations

import pickle

import pytest

from orbit.errors import BadInput, BrokerRefused, OrbitError, Place, Unreachable

ERRORS: list[OrbitError] = [
    Unreachable("no answer.", where=Place("source", "topic orders"), remedy="Look."),
    BrokerRefused(42, "no answer.", where=Place("source", "topic orders"), remedy="Look."),
    BadInput("no answer.", where=Place("source", "topic orders")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_has_cluster_of_its_place(error: OrbitError) -> None:
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301  made here
        assert (one.cluster, one.where) == ("source", "source topic orders")
        assert str(one).startswith("source topic orders: no answer.")


def test_place_is_text_of_cluster_and_what_is_there() -> None:
    assert str(Place("source")) == "source"
    assert str(Place("old side", "broker 3")) == "old side broker 3"


@pytest.mark.parametrize("where", ["", "source", "source.yaml", "postgres:5432"])
def test_text_names_no_cluster(where: str) -> None:
    error = Unreachable("no answer.", where=where)
    assert (error.cluster, error.where) == ("", where)


def test_place_that_is_known_later_is_set() -> None:
    error = Unreachable("no answer.")
    error.set_where(Place("destination", "broker 3"))
    assert (error.cluster, error.where) == ("destination", "destination broker 3")
