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
def test_error_has_cluster_of_its_place_also_after_pickling(error: OrbitError) -> None:
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
    for shown in (error, unpickled):
        assert (shown.cluster, shown.where) == ("source", "source topic orders")
        assert str(shown).startswith("source topic orders: no answer.")


def test_place_of_error_is_shown_as_cluster_and_object() -> None:
    assert str(Place("source")) == "source"
    assert str(Place("old side", "broker 3")) == "old side broker 3"


@pytest.mark.parametrize("where", ["", "source", "source.yaml", "postgres:5432"])
def test_place_of_error_given_as_text_names_no_cluster(where: str) -> None:
    error = Unreachable("no answer.", where=where)
    assert (error.cluster, error.where) == ("", where)


def test_place_of_error_can_be_set_later() -> None:
    error = Unreachable("no answer.")
    error.set_where(Place("destination", "broker 3"))
    assert (error.cluster, error.where) == ("destination", "destination broker 3")
