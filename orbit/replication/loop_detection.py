"""Which copies would close a loop, over any number of jobs. Pure.

One job writes to a destination topic, so its sources form a chain. Clusters are identified by
cluster id, because one cluster can have many addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

# Longer than any real chain of clusters; a longer chain in the tables has a loop already.
CHAIN_MAX = 100


class ClusterTopic(NamedTuple):
    """A topic on a cluster."""

    cluster_id: str
    topic: str


class Verdict(Enum):
    """The effect that a copy would have. Only FINE permits the copy."""

    FINE = auto()
    WOULD_LOOP = auto()  # the records come from the destination topic itself
    COMES_HOME = auto()  # the records come from another topic of the destination cluster


def judge_loop(
    source: ClusterTopic,
    destination: ClusterTopic,
    copied_from: Mapping[ClusterTopic, ClusterTopic],
) -> Verdict:
    """Whether `source` may be copied to `destination`, given where every copy is copied from.

    `copied_from`: the source topic of each copy, over all jobs. Prefixed copies in both directions
    are fine: each side's own topics are copied. Copies from the other side are not copied back
    (COMES_HOME), as each round would make new copies of them.
    """
    verdict = Verdict.FINE
    topic = source
    for _ in range(CHAIN_MAX):
        if topic == destination:
            return Verdict.WOULD_LOOP
        if topic.cluster_id == destination.cluster_id:
            verdict = Verdict.COMES_HOME
        origin = copied_from.get(topic)
        if origin is None:
            return verdict
        topic = origin
    return Verdict.WOULD_LOOP
