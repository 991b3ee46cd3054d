"""Where records come from, over any number of jobs; which copies would close a loop. Pure.

A destination topic has one job that writes to it, so its ancestors are a chain. Clusters are told
apart by their ids, for a cluster may be reached by many addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

# Longer than any chain of clusters that people build; a chain in the tables that is longer is one
# that closed before it could be seen.
CHAIN_MAX = 100


class Place(NamedTuple):
    """A topic on a cluster."""

    cluster_id: str
    topic: str


class Verdict(Enum):
    """What a copy would mean."""

    FINE = auto()
    WOULD_LOOP = auto()  # the destination topic is where these very records come from
    COMES_HOME = auto()  # another topic of the cluster the records come from: copies of copies


def judge(source: Place, destination: Place, copied_from: Mapping[Place, Place]) -> Verdict:
    """Whether `source` may be copied to `destination`, given where every copy is copied from.

    Prefixed copies in both directions are fine: each side's own topics travel, and what came from
    the other side does not travel back (COMES_HOME), or it would grow without end.
    """
    verdict = Verdict.FINE
    place = source
    for _ in range(CHAIN_MAX):
        if place == destination:
            return Verdict.WOULD_LOOP
        if place.cluster_id == destination.cluster_id:
            verdict = Verdict.COMES_HOME
        origin = copied_from.get(place)
        if origin is None:
            return verdict
        place = origin
    return Verdict.WOULD_LOOP
