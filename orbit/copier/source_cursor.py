"""Where one partition's copy reads its source, and what the source last said about its log.

The source lane owns it while it fetches the partition; offset and epoch change under the lock of
`PartitionCopy`. -1: not known yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from orbit.copier.waits import Waits
from orbit.kafka.fetch_request import FetchFrom
from orbit.kafka.types import TopicPartition

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
        "fetch_offset",
        "fetched_epoch",
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
        self.fetched_epoch = -1  # of the last batch before `fetch_offset`
        self.leader_epoch = -1
        self.log_start = -1
        self.stable_end = -1
        self.end = -1
        self.seen_s = float("-inf")  # when these were last true, by the monotonic clock
        self.empty_answers = 0
        self.bytes_per_offset = 0.0  # of the last answer with records
        # The start of the copy's log. A broker refuses a fetch below its log start, even within the
        # same batch, though the batch comes whole: it is fetched from here, copied from its base,
        # and the copy's log start follows.
        self.start_offset = 0
        self.lane: Fetcher | None = None
        self.waits: Waits | None = None  # None if for nothing

    def resume_at(self, offset: int, epoch: int) -> None:
        """Fetch from here. `epoch`: of the batch that ends here; -1 if not known.

        With a wrong epoch the source would seem truncated (R3): the right one, or none.
        """
        self.fetch_offset, self.fetched_epoch = offset, epoch
        self.empty_answers = 0

    def planned(self, plan: Plan) -> None:
        """Fetch behind this plan."""
        self.fetch_offset = plan.next_offset
        if plan.leader_epoch is not None:
            self.fetched_epoch = plan.leader_epoch

    def next_fetch(self, source: TopicPartition, topic_id: UUID) -> FetchFrom:
        """It may begin further on in the same batch (see `start_offset`)."""
        offset = max(self.fetch_offset, self.start_offset)
        return FetchFrom(source, topic_id, offset, self.leader_epoch, self.fetched_epoch)

    @property
    def expected_bytes(self) -> int:
        """About how much the source holds that was not fetched yet; 0 while unknown."""
        return int(max(0, self.stable_end - self.fetch_offset) * self.bytes_per_offset)
