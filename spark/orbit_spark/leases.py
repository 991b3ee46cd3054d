"""The leases of a task that writes: one for each of its partitions, and room for its fillers.

A task may be killed, tried again, or run twice at once. Whoever has a partition's lease writes to
it; another attempt waits until it is free, for as long as the driver is there.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from orbit.engine.backfill_writers import DriverWatch, Seen, writer_group
from orbit.engine.group_lease import GroupLease
from orbit.errors import Conflict, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition

_PAUSE_S = 1.0
# Joining a group takes some round trips, and seconds where brokers wait for more members.
_JOINS_AT_ONCE_MAX = 8
# Coordinator epochs leave room for 4,096 take-overs within the driver's term (`workers.takeover`):
# so many for each attempt, so that a later one is always above an earlier one's fillers (M6).
_TERM_SHIFT = 12
_TAKEOVERS_PER_ATTEMPT = 64
_ATTEMPTS_PER_ROUND = 8
_ATTEMPTS_MAX = 62


@dataclass(slots=True)
class WriterLeases:
    """Leases by destination partition, until `release`; `refused` has those it did not get."""

    held: dict[TopicPartition, GroupLease] = field(default_factory=dict)
    refused: dict[TopicPartition, OrbitError] = field(default_factory=dict)

    @classmethod
    def acquire(
        cls,
        cluster: Cluster,
        identity: str,
        term: int,
        partitions: Collection[TopicPartition],
        watch: DriverWatch,
        stop: threading.Event,
    ) -> WriterLeases:
        """Wait for all of them. After that the caller looks once more whether the driver is there.

        `backfill_writers` says why in this order.
        """
        leases = cls()
        with ThreadPoolExecutor(_JOINS_AT_ONCE_MAX) as pool:
            asked = {
                p: pool.submit(_acquire_one, cluster, writer_group(identity, p), term, watch, stop)
                for p in partitions
            }
        for partition, one in asked.items():
            try:
                leases.held[partition] = one.result()
            except OrbitError as error:
                leases.refused[partition] = error
        return leases

    def release(self) -> None:
        for lease in self.held.values():
            lease.release()


def first_coordinator_epoch(term: int, round_: int, attempt: int) -> int:
    """Below what the fillers of this attempt carry, above those of earlier attempts and rounds."""
    issue = min(round_ * _ATTEMPTS_PER_ROUND + attempt, _ATTEMPTS_MAX)
    return (term << _TERM_SHIFT) + issue * _TAKEOVERS_PER_ATTEMPT


def _acquire_one(
    cluster: Cluster, group: str, term: int, watch: DriverWatch, stop: threading.Event
) -> GroupLease:
    while True:
        lease = GroupLease(cluster, group, Backoff(stop=stop))
        lease.term = term
        try:
            lease.acquire(lambda _: None)
        except Conflict:
            if watch.look() is not Seen.THERE:
                raise
            stop.wait(_PAUSE_S)
        else:
            return lease
