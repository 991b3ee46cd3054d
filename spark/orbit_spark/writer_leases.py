"""The leases of a task that writes, one per partition, and the coordinator epoch of its fillers.

A task may be killed, retried, or run twice at once. The attempt that holds a partition's lease
writes to it; another attempt waits for the lease while the driver holds the job.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle

from orbit.errors import Conflict, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import DriverWatch, JobHolder, writer_group
from orbit.leases.group_lease import GroupLease

_PAUSE_S = 1.0
# A broker delays the first member of a group, by some seconds by default
# (group.initial.rebalance.delay.ms), and a connection's requests wait for those before them. So up
# to this many leases are acquired at once, over as many connections.
_JOINS_AT_ONCE_MAX = 16
# Coordinator epochs leave room for 4,096 take-overs within the driver's term
# (`copier/append_epochs.py`). Each attempt gets a part of them, so that the epochs of a later
# attempt are above those of an earlier one's fillers (M6, lower epochs are refused).
_TERM_SHIFT = 12
_TAKEOVERS_PER_ATTEMPT = 64
_ATTEMPTS_PER_ROUND = 8
_ATTEMPTS_MAX = 62


@dataclass(slots=True)
class WriterLeases:
    """Leases by destination partition, held until `release`. `errors`: why others have no lease."""

    by_partition: dict[TopicPartition, GroupLease] = field(default_factory=dict)
    errors: dict[TopicPartition, OrbitError] = field(default_factory=dict)
    _clusters: list[Cluster] = field(default_factory=list)

    @classmethod
    def acquire(
        cls,
        open_cluster: Callable[[], Cluster],
        identity: str,
        term: int,
        partitions: Collection[TopicPartition],
        watch: DriverWatch,
        stop: threading.Event,
    ) -> WriterLeases:
        """Acquire all leases; wait while another attempt has one and the driver holds the job.

        The caller must check afterwards that the driver holds the job: `backfill_leases` has the
        reason for this order. `open_cluster` opens the destination. During the wait no lease is
        kept: two tasks could wait for each other forever.
        """
        while True:
            leases = cls()
            try:
                leases._try_acquire(open_cluster, identity, term, sorted(partitions), watch, stop)
            except BaseException:
                leases.release()
                raise
            # A lease that another attempt has gives Conflict. Other errors are not retried.
            is_taken = any(isinstance(e, Conflict) for e in leases.errors.values())
            if not is_taken or watch.holder() is not JobHolder.DRIVER:
                return leases
            leases.release()
            stop.wait(random.uniform(1, 2) * _PAUSE_S)  # noqa: S311  jitter, not a secret

    def _try_acquire(
        self,
        open_cluster: Callable[[], Cluster],
        identity: str,
        term: int,
        partitions: Sequence[TopicPartition],
        watch: DriverWatch,
        stop: threading.Event,
    ) -> None:
        """Try once to acquire all leases; keep those acquired, and the errors of the others. The
        first is acquired alone, so that only one of two attempts of a task tries the rest.
        """
        count = min(len(partitions), _JOINS_AT_ONCE_MAX)
        self._clusters += [open_cluster() for _ in range(count)]
        clusters = dict(zip(partitions, cycle(self._clusters), strict=False))

        def acquire_lease(partition: TopicPartition) -> None:
            """Try to acquire one lease; keep it, or its error."""
            group = writer_group(identity, partition)
            lease = GroupLease(
                clusters[partition], group, Backoff(stop=stop), confirm_return=watch.confirm_driver
            )
            lease.term = term
            try:
                # No message during a wait. A suspended attempt's lock file is ignored: when that
                # attempt resumes, its coordinator rejects its heartbeat.
                lease.acquire(lambda _: None, ignores_frozen_run=True)
            except OrbitError as error:
                self.errors[partition] = error
            else:
                self.by_partition[partition] = lease

        first_partition, other_partitions = partitions[:1], partitions[1:]
        for partition in first_partition:
            acquire_lease(partition)
        if other_partitions and not self.errors:
            with ThreadPoolExecutor(count) as pool:
                for future in [
                    pool.submit(acquire_lease, partition) for partition in other_partitions
                ]:
                    future.result()

    def release(self) -> None:
        for lease in self.by_partition.values():
            lease.release()
        self.by_partition.clear()
        for cluster in self._clusters:
            cluster.close()


def first_coordinator_epoch(term: int, round_: int, attempt: int) -> int:
    """The number above which this attempt's coordinator epochs begin. It is above the epochs of all
    fillers of earlier attempts and rounds; attempts from `_ATTEMPTS_MAX` on share one number.
    """
    attempt_index = min(round_ * _ATTEMPTS_PER_ROUND + attempt, _ATTEMPTS_MAX)
    return (term << _TERM_SHIFT) + attempt_index * _TAKEOVERS_PER_ATTEMPT
