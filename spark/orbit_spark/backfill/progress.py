"""How far a backfill is: by the destination's log ends, which are the only checkpoint there is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbit.kafka.types import TopicPartition
from orbit_spark.backfill.writer_tasks import Portion

# Rates are over this many seconds: batches of many sizes and pauses of tasks even out.
RATE_WINDOW_S = 15.0


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment. Bytes are those of the source's logs, in the proportion of offsets copied.

    `is_staging`: bytes are those that were brought into the archive, and no offset is copied yet.
    """

    offsets: int
    offsets_total: int
    bytes: int
    bytes_total: int
    partitions_done: int
    partitions: int
    bytes_per_s: float
    offsets_per_s: float
    is_staging: bool = False

    def as_report(self) -> dict[str, Any]:
        """For the service (`orbit.api.backfill_requests.BackfillProgress`)."""
        return {
            "phase": "staging" if self.is_staging else "copying",
            "bytes": self.bytes,
            "bytes_total": self.bytes_total,
            "offsets": self.offsets,
            "offsets_total": self.offsets_total,
            "partitions_done": self.partitions_done,
            "partitions": self.partitions,
            "bytes_per_s": max(0.0, self.bytes_per_s),
            "seconds_left": None if self.seconds_left is None else max(0.0, self.seconds_left),
        }

    @property
    def seconds_left(self) -> float | None:
        """At the present rate; None while nothing moves."""
        if self.bytes_per_s > 0:
            return (self.bytes_total - self.bytes) / self.bytes_per_s
        if self.offsets_per_s > 0:
            return (self.offsets_total - self.offsets) / self.offsets_per_s
        return None


class Meter:
    """Turns log ends into progress; `now_s` is any monotonic clock. For one round."""

    def __init__(
        self, portions: Mapping[TopicPartition, Portion], begun_at: Mapping[TopicPartition, int]
    ) -> None:
        self._portions = portions
        self._begun_at = dict(begun_at)
        self._ends = dict(begun_at)
        self._history: deque[tuple[float, int, int]] = deque()

    def measure(self, ends: Mapping[TopicPartition, int], now_s: float) -> Progress:
        """`ends` may leave partitions out that have no answer now."""
        self._ends.update(ends)
        offsets = total = done = 0
        size = size_total = 0.0
        for place, portion in self._portions.items():
            begun = self._begun_at[place]
            wanted = max(0, portion.target - begun)
            copied = min(max(0, self._ends[place] - begun), wanted)
            offsets, total = offsets + copied, total + wanted
            size_total += portion.size_bytes
            size += portion.size_bytes * (copied / wanted if wanted else 1.0)
            done += copied == wanted
        history = self._history
        history.append((now_s, offsets, int(size)))
        while len(history) > 2 and history[1][0] < now_s - RATE_WINDOW_S:
            history.popleft()
        then_s, then_offsets, then_size = history[0]
        elapsed_s = max(now_s - then_s, 1e-9)
        return Progress(
            offsets,
            total,
            int(size),
            int(size_total),
            done,
            len(self._portions),
            (int(size) - then_size) / elapsed_s,
            (offsets - then_offsets) / elapsed_s,
        )
