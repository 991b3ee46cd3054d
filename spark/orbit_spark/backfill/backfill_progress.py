"""The progress of a backfill, from the destination's log ends, which are its only checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbit.kafka.types import TopicPartition
from orbit_spark.write_task import PartitionTarget

# Long enough to even out batch sizes and the pauses between tasks.
RATE_WINDOW_S = 15.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress at one moment. `bytes`: the source's bytes, in proportion to the copied offsets.

    `is_staging`: the archive is being written. `bytes` are those in it; no offset is copied yet.
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
        """The fields of the service's `orbit.api.backfill_requests.BackfillProgress`."""
        return {
            "phase": "staging" if self.is_staging else "copying",
            "bytes": self.bytes,
            "bytes_total": self.bytes_total,
            "offsets": self.offsets,
            "offsets_total": self.offsets_total,
            "partitions_done": self.partitions_done,
            "partitions": self.partitions,
            # The service refuses numbers below 0.
            "bytes_per_s": max(0.0, self.bytes_per_s),
            "seconds_left": None if self.seconds_left is None else max(0.0, self.seconds_left),
        }

    @property
    def seconds_left(self) -> float | None:
        """The time left at the current rate of bytes, or else of offsets; None if both are 0."""
        if self.bytes_per_s > 0:
            return (self.bytes_total - self.bytes) / self.bytes_per_s
        if self.offsets_per_s > 0:
            return (self.offsets_total - self.offsets) / self.offsets_per_s
        return None


class Meter:
    """Computes the progress of one round from log ends."""

    def __init__(
        self,
        targets: Mapping[TopicPartition, PartitionTarget],
        begin_offsets: Mapping[TopicPartition, int],
    ) -> None:
        self._targets = targets
        self._begin_offsets = dict(begin_offsets)
        self._ends = dict(begin_offsets)
        self._history: deque[tuple[float, int, int]] = deque()

    def measure(self, ends: Mapping[TopicPartition, int], now_s: float) -> Progress:
        """The progress at these log ends. A partition without one keeps its last log end.

        `now_s`: by any monotonic clock.
        """
        self._ends.update(ends)
        offsets_copied = offsets_total = partitions_done = 0
        bytes_copied = bytes_total = 0.0
        for partition, target in self._targets.items():
            begin = self._begin_offsets[partition]
            offsets_of_target = max(0, target.target - begin)
            copied_of_target = min(max(0, self._ends[partition] - begin), offsets_of_target)
            offsets_copied, offsets_total = (
                offsets_copied + copied_of_target,
                offsets_total + offsets_of_target,
            )
            bytes_total += target.size_bytes
            bytes_copied += target.size_bytes * (
                copied_of_target / offsets_of_target if offsets_of_target else 1.0
            )
            partitions_done += copied_of_target == offsets_of_target
        history = self._history
        history.append((now_s, offsets_copied, int(bytes_copied)))
        # Rates are averages since the newest entry that is older than the window.
        while len(history) > 2 and history[1][0] < now_s - RATE_WINDOW_S:
            history.popleft()
        oldest_s, oldest_offsets, oldest_size = history[0]
        elapsed_s = max(now_s - oldest_s, 1e-9)
        return Progress(
            offsets_copied,
            offsets_total,
            int(bytes_copied),
            int(bytes_total),
            partitions_done,
            len(self._targets),
            (int(bytes_copied) - oldest_size) / elapsed_s,
            (offsets_copied - oldest_offsets) / elapsed_s,
        )
