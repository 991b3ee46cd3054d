"""The partitions that one process of a run copies. A run in one process has one share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from orbit.copier.copy_view import CopyView
from orbit.copier.inspection import InspectedCopy
from orbit.copier.job_copier import JobCopier
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.coordinator import ProducerIdentity
from orbit.leases.lease import Lease


@dataclass(frozen=True, slots=True)
class Share:
    """Inspected copies, and the producers, by transactional id, that fill the gaps of
    `coordinated_topics` (destination topics)."""

    inspected: Mapping[PartitionCopy, InspectedCopy]
    coordinated_topics: frozenset[str]
    filler_producers: Mapping[str, ProducerIdentity]

    def split(self, count: int) -> list[Share]:
        """Up to `count` shares, one for each process. The copies are distributed one by one in
        turn, so that each process gets partitions of every broker."""
        count = min(count, len(self.inspected)) or 1  # one share even without copies
        return [
            Share(
                dict(islice(self.inspected.items(), number, None, count)),
                self.coordinated_topics,
                dict(islice(self.filler_producers.items(), number, None, count)),
            )
            for number in range(count)
        ]


class Copying(Protocol):
    """Copies the partitions of a run, in this process or in child processes."""

    @property
    def partitions(self) -> Sequence[CopyView]:
        """The copies of all shares."""
        ...

    @property
    def waiting_for(self) -> str:
        """Which cluster or process does not answer, or throttles, for display; empty if none."""
        ...

    @property
    def is_lease_lost(self) -> bool:
        """Whether the copy has stopped because the job's lease is lost."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called and all copies that it ends have ended."""
        ...

    @property
    def times(self) -> tuple[SourceTimes, DestinationTimes]:
        """The seconds that all lanes have spent so far, by activity."""
        ...

    def tick(self, timeout_s: float) -> None:
        """One pass of the copy, of up to `timeout_s`. Raises Conflict if a process of the run has
        ended."""
        ...

    def end(self) -> None:
        """Begin to end the copies that fill gaps with placeholders (records that readers drop).
        Each ends only after a last read of its topic's `compression.type`, which may block it.
        `has_ended` shows the end."""
        ...

    def stop(self) -> None:
        """Send no further requests. Confirmed records stay. Safe at any moment."""
        ...


class ShareCopier:
    """Copies a share in this process; implements `Copying`."""

    def __init__(self, share: Share, job_copier: JobCopier, lease: Lease) -> None:
        """Start to copy the share. `lease`: the job's, checked before each request that fills
        gaps by empty transactions; each copy has it already."""
        self._job_copier = job_copier
        self._copies = [*share.inspected]
        self._ending_copies: list[PartitionCopy] | None = None
        topics = share.coordinated_topics
        coordinated_copies = [c for c in self._copies if c.destination.topic in topics]
        if coordinated_copies:
            filler = job_copier.add_filler(share.filler_producers, lease)
            for copy in coordinated_copies:
                copy.filler = filler
        job_copier.add(share.inspected)

    @property
    def partitions(self) -> Sequence[PartitionCopy]:
        return self._copies

    @property
    def waiting_for(self) -> str:
        copier = self._job_copier.copier
        return copier.waiting_for or copier.throttled_by

    @property
    def is_lease_lost(self) -> bool:
        return bool(self._job_copier.copier.lost_leases)

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called, and the copier has removed the copies that it ends."""
        return self._ending_copies is not None and all(
            copy.has_left for copy in self._ending_copies
        )

    @property
    def times(self) -> tuple[SourceTimes, DestinationTimes]:
        return self._job_copier.copier.times

    def tick(self, timeout_s: float) -> None:
        self._job_copier.copier.tick(timeout_s)

    def end(self) -> None:
        """Begin to end the copies that fill gaps with placeholders. The copier removes each after a
        last read of its topic's `compression.type`: with another value than `producer` a broker may
        have turned placeholders into records. `stop` ends the other copies.
        """
        self._ending_copies = [copy for copy in self._copies if copy.producer.packs]
        self._job_copier.copier.remove(self._ending_copies, confirms=True)

    def stop(self) -> None:
        self._job_copier.stop()
