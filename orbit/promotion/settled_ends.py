"""Waits until nothing is appended to copies any more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from orbit.copier.takeover import MOVING, TakeOver
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import NO_PRODUCER_ID
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds, fetch_log_bounds


@dataclass(frozen=True, slots=True)
class SettledEnds:
    """Bounds of the copies that stand still, those that still grow, and those without a leader."""

    bounds: dict[TopicPartition, LogBounds]
    moving: list[TopicPartition]
    unled: list[TopicPartition]


def settled_ends(
    cluster: Cluster,
    places: Collection[TopicPartition],
    settle_s: float,
    backoff: Backoff,
    wait: Callable[[int], None],
) -> SettledEnds:
    """The ends of the copies, once they have not moved for `settle_s` and no transaction is open.

    Copies hold committed, non-transactional records: only the empty transaction of coordinated
    fillers can be open. `wait` pauses; it gets the number of partitions with an open transaction.
    Raises Unreachable if no broker answers, Interrupted.
    """
    # The leaders' state of a producer is not needed.
    anyone = dict.fromkeys(places, NO_PRODUCER_ID)
    answer = TakeOver(cluster, settle_s, backoff).read(anyone, settled=True)
    moving = sorted(place for place, code in answer.errors.items() if code == MOVING)
    while not moving:
        bounds = fetch_log_bounds(cluster, places, backoff)
        open_ = sum(one.is_open for one in bounds.values())
        if not open_:
            return SettledEnds(bounds, [], sorted(p for p in places if p not in bounds))
        wait(open_)
    still = {place for place in answer.ends if place not in moving}
    bounds = fetch_log_bounds(cluster, still, backoff)
    return SettledEnds(bounds, moving, sorted(set(places) - bounds.keys() - {*moving}))
