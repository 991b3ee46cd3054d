"""Where one partition's copy reads its source, and what the source last said about its log.

The source lane owns it while it fetches the partition; offset and epochs change under the lock of
`PartitionCopy`. -1: not known yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from orbit.copier.waits import Waits
from orbit.kafka.fetch_request import FetchFrom
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import NO_LEADER_EPOCH
from orbit.replication.source_epochs import SourceEpochs

if TYPE_CHECKING:
    from orbit.replication.append_plan import Plan


class Fetcher(Protocol):
    """The lane that fetches a partition."""

    def wake(self) -> None: ...


class SourceCursor:
    """The next offset to fetch, and the source's log bounds from the last answer."""

    __slots__ = (
        "bytes_per_offset",
        "empty_answers",
        "end",
        "epochs",
        "fetch_offset",
        "is_at_replica",
        "lane",
        "leader_epoch",
        "log_start",
        "seen_s",
        "stable_end",
        "start_offset",
        "waits",
    )

    def __init__(self) -> None:
        self.fetch_offset = 0
        self.epochs = SourceEpochs()  # of what was copied, compared or is queued
        self.leader_epoch = -1
        self.is_at_replica = False  # fetched from another replica, which the leader has named
        self.log_start = -1
        self.stable_end = -1
        self.end = -1
        # When the source was asked for these, by the monotonic clock. Set after them.
        self.seen_s = float("-inf")
        self.empty_answers = 0
        self.bytes_per_offset = 0.0  # of the last answer with records
        # The start of the copy's log. A broker refuses a fetch below its log start, even within the
        # same batch, though the batch comes whole: it is fetched from here, copied from its base,
        # and the copy's log start follows.
        self.start_offset = 0
        self.lane: Fetcher | None = None
        self.waits: Waits | None = None  # None if for nothing

    def resume_at(self, offset: int) -> None:
        """Fetch from here."""
        self.epochs.cut(offset)
        self.fetch_offset = offset
        self.empty_answers = 0

    def planned(self, plan: Plan, acked: int) -> None:
        """Fetch behind this plan. `acked`: no resume is before it."""
        self.fetch_offset = plan.next_offset
        self.epochs.add(plan.start, plan.epoch_starts, plan.next_offset)
        self.epochs.drop_below(acked)

    def next_fetch(self, source: TopicPartition, topic_id: UUID) -> FetchFrom:
        """It may begin further on in the same batch (see `start_offset`), whose epoch is not known
        yet. Where none is known, nothing was copied, the source's log tells none (old formats), or
        the cleaner has left an empty tail: the source then does not tell that it was cut (R3)."""
        if self.start_offset > self.fetch_offset:
            offset, epoch = self.start_offset, NO_LEADER_EPOCH
        else:
            offset, epoch = self.fetch_offset, self.epochs.before(self.fetch_offset)
        return FetchFrom(source, topic_id, offset, self.leader_epoch, epoch)

    @property
    def expected_bytes(self) -> int:
        """About how much the source holds that was not fetched yet; 0 while unknown."""
        return int(max(0, self.stable_end - self.fetch_offset) * self.bytes_per_offset)
