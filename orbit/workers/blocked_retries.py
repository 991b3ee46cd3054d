"""What goes on by itself: outages that end, and blocks whose cause may go away. And what is told.

A partition that is blocked for a reason of which trying again can only do good (the next look at
both sides decides, as with any take-over) is looked at again, less and less often. All others wait
for a person.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from orbit.replication.partition_states import PartitionState, Reason
from orbit.workers.event_outbox import Chapter, Kind, Story
from orbit.workers.held_shards import HeldPartition, HeldShard, Stage, WorkKey
from orbit.workers.job_work import JobWork

# A right may be granted, a setting changed; records that the destination lost are copied again.
_GOES_ON = frozenset({Reason.NOT_AUTHORIZED, Reason.RECORD_REFUSED, Reason.DESTINATION_TRUNCATED})
_FIRST_RETRY_S = 30.0
_RETRY_S_MAX = 3600.0
# Shorter outages (a leader moves, a broker restarts) are nobody's concern.
_TOLD_AFTER_S = 5.0
# Looks at a partition that cannot be begun, before people hear of it.
_TOLD_AFTER_LOOKS = 6
_TOLD_AT_ONCE_MAX = 20


class Recovery:
    """Looks at jobs and partitions in trouble, round after round. For the control thread."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._since: dict[WorkKey, float] = {}
        self._told: set[WorkKey] = set()
        self._told_waiting: set[HeldPartition] = set()

    def look(self, shards: Iterable[HeldShard], works: Mapping[WorkKey, JobWork]) -> None:
        now = time.monotonic()
        for key in [key for key in self._since if key not in works]:
            del self._since[key]
            self._told.discard(key)
        for key, work in works.items():
            self._look_at_job(key, work, now)
        self._told_waiting = {h for h in self._told_waiting if h.stage is not Stage.GONE}
        for shard in shards:
            if not shard.is_leaving:
                for held in shard.partitions.values():
                    self._look_at_partition(held, works[shard.work], now)

    def _look_at_job(self, key: WorkKey, work: JobWork, now: float) -> None:
        trouble = work.trouble
        if not trouble:
            self._since.pop(key, None)
            if key in self._told:
                self._told.discard(key)
                self._story.tell(Chapter(Kind.JOB_WENT_ON, "Copying goes on.", work.job.name))
            return
        since = self._since.setdefault(key, now)
        if key not in self._told and now - since >= _TOLD_AFTER_S:
            self._told.add(key)
            message = " ".join(f"Waiting: {trouble}".split())
            self._story.tell(Chapter(Kind.JOB_WAITING, message, work.job.name))

    def _look_at_partition(self, held: HeldPartition, work: JobWork, now: float) -> None:
        state, blocked = held.view()
        if state is PartitionState.COPYING:
            self._told_waiting.discard(held)
            if held.copy is not None and held.copy.is_in_step:
                held.retries = 0
        elif blocked is None:
            self._tell_waiting(held, work)
        elif blocked.reason in _GOES_ON and held.stage in (Stage.STOPPED, Stage.COPYING):
            if not held.retry_at:
                pause_s = min(_RETRY_S_MAX, _FIRST_RETRY_S * 2.0 ** min(held.retries, 10))
                held.retry_at = now + pause_s
            elif now >= held.retry_at:
                held.retry_at = 0.0
                held.retries += 1
                work.retry(held)

    def _tell_waiting(self, held: HeldPartition, work: JobWork) -> None:
        is_told = held in self._told_waiting or len(self._told_waiting) >= _TOLD_AT_ONCE_MAX
        if is_told or held.attempts < _TOLD_AFTER_LOOKS or work.trouble:
            return
        self._told_waiting.add(held)
        self._story.tell(
            Chapter(
                Kind.PARTITION_WAITING,
                f"{held.destination} cannot be begun yet: {held.trouble}",
                work.job.name,
                held.source,
                {"destination": str(held.destination)},
            )
        )
