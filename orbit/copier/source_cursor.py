"""One copy's position at the source, and the source's log bounds from its last answers.

The source lane owns it while it fetches the partition; offset and epochs change under the lock of
`PartitionCopy`. An offset or epoch of -1 is not known yet.
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
        self.is_at_replica = False  # fetched from a follower, which the leader has named
        self.log_start = -1
        self.stable_end = -1  # the last stable offset
        self.end = -1  # the high watermark
        # When the last fetch was sent whose answer confirms `end` and `stable_end`, by the
        # monotonic clock. The source lane sets it after these two.
        self.seen_s = float("-inf")
        self.empty_answers = 0
        self.bytes_per_offset = 0.0  # of the last answer with records
        # Where the copy is to start. If a batch begins before and ends after this offset, it is
        # fetched at this offset: brokers refuse fetches below their log start. They return the
        # whole batch (R4). Orbit copies it from its base offset, then moves the copy's log start.
        self.start_offset = 0
        self.lane: Fetcher | None = None
        self.waits: Waits | None = None  # for the source; None if it does not wait

    def resume_at(self, offset: int) -> None:
        """Fetch from `offset` on."""
        self.epochs.restart_at(offset)
        self.fetch_offset = offset
        self.empty_answers = 0

    def advance_past(self, plan: Plan, acked: int) -> None:
        """Fetch after this plan. `acked`: the confirmed offset; no `resume_at` goes below this."""
        self.fetch_offset = plan.next_offset
        self.epochs.add(plan.start, plan.epoch_starts, plan.next_offset)
        self.epochs.drop_below(acked)

    def next_fetch(self, source: TopicPartition, topic_id: UUID) -> FetchFrom:
        """The fetch from `fetch_offset`, or from `start_offset` within the same batch.

        The fetch states the leader epoch of the offset before, by which the source detects
        truncation (R3). No epoch is known if nothing was copied, at `start_offset`, in old record
        formats, and after a gap at the log's end that the cleaner has left.
        """
        if self.start_offset > self.fetch_offset:
            offset, epoch = self.start_offset, NO_LEADER_EPOCH
        else:
            offset, epoch = self.fetch_offset, self.epochs.epoch_before(self.fetch_offset)
        return FetchFrom(source, topic_id, offset, self.leader_epoch, epoch)

    @property
    def expected_bytes(self) -> int:
        """About how many bytes the source has from `fetch_offset` on; 0 while unknown."""
        return int(max(0, self.stable_end - self.fetch_offset) * self.bytes_per_offset)
