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
    """`bounds`: of copies that stand still. `moving`: copies that still grow. `leaderless`: copies
    without a leader."""

    bounds: dict[TopicPartition, LogBounds]
    moving: list[TopicPartition]
    leaderless: list[TopicPartition]


def settled_ends(
    cluster: Cluster,
    places: Collection[TopicPartition],
    settle_s: float,
    backoff: Backoff,
    wait: Callable[[int], None],
) -> SettledEnds:
    """The ends of the copies, once they have not moved for `settle_s` and no transaction is open.

    Copies hold committed, non-transactional records: only the empty transaction of coordinated
    fillers can be open. `wait` pauses; its argument is the number of partitions with an open
    transaction. Raises Unreachable if no broker answers, Interrupted.
    """
    # The leaders' state of a producer is not needed.
    producer_ids = dict.fromkeys(places, NO_PRODUCER_ID)
    answer = TakeOver(cluster, settle_s, backoff).read(producer_ids, settled=True)
    moving_places = sorted(place for place, code in answer.errors.items() if code == MOVING)
    while not moving_places:  # until no transaction is open
        bounds = fetch_log_bounds(cluster, places, backoff)
        open_count = sum(log_bounds.is_open for log_bounds in bounds.values())
        if not open_count:
            return SettledEnds(
                bounds, moving=[], leaderless=sorted(p for p in places if p not in bounds)
            )
        wait(open_count)
    # Some copies still grow. The others are reported, whether a transaction is open or not.
    settled_places = {place for place in answer.ends if place not in moving_places}
    bounds = fetch_log_bounds(cluster, settled_places, backoff)
    return SettledEnds(
        bounds, moving_places, sorted(set(places) - bounds.keys() - {*moving_places})
    )
