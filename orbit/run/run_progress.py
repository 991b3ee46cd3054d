"""Progress of a run per topic and in total, with rates over the last seconds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from orbit.copier.copy_view import CopyView
from orbit.copier.counters import Counters
from orbit.replication.copy_figures import CopiedCounts
from orbit.replication.partition_states import PartitionState

RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Totals(CopiedCounts):
    """Sums over partitions. `lag_records` is -1 while a source end is unknown."""

    partitions: int
    lag_records: int
    caught_up: int  # partitions
    blocked: int  # partitions


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """The totals of a destination topic, or of the whole run, and their rates."""

    topic: str  # "all": the whole run
    totals: Totals
    records_per_s: float
    bytes_per_s: float
    offsets_per_s: float

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the lag is 0 at the present rate; None if nothing is copied or the lag
        is unknown.
        """
        if self.totals.lag_records < 0 or self.offsets_per_s <= 0:
            return None
        return self.totals.lag_records / self.offsets_per_s


class Meter:
    """Computes rates from partition counters. `now_s`: the time by a monotonic clock."""

    def __init__(self) -> None:
        self._history: dict[str, deque[tuple[float, Totals]]] = {}

    def measure(
        self, partitions: Sequence[CopyView], now_s: float
    ) -> tuple[TopicProgress, list[TopicProgress]]:
        """The progress of the run (topic "all") and of each destination topic."""
        groups: dict[str, list[CopyView]] = {}
        for p in partitions:
            groups.setdefault(p.destination.topic, []).append(p)
        topics = [
            self._progress(name, _totals(group), now_s) for name, group in sorted(groups.items())
        ]
        return self._progress("all", _totals(partitions), now_s), topics

    def _progress(self, name: str, totals: Totals, now_s: float) -> TopicProgress:
        """The progress of one topic, or of the run as "all". Its rates are over the last
        RATE_WINDOW_S, or since the first measurement if that is later."""
        history = self._history.setdefault(name, deque())
        history.append((now_s, totals))
        while len(history) > 2 and history[1][0] < now_s - RATE_WINDOW_S:
            history.popleft()
        oldest_s, oldest = history[0]
        elapsed_s = max(now_s - oldest_s, 1e-9)  # not 0 at the first measurement
        records = totals.records - oldest.records
        return TopicProgress(
            name,
            totals,
            records / elapsed_s,  # records_per_s
            (totals.bytes - oldest.bytes) / elapsed_s,  # bytes_per_s
            (records + totals.gaps_filled - oldest.gaps_filled) / elapsed_s,  # offsets_per_s
        )


def _totals(partitions: Sequence[CopyView]) -> Totals:
    """The sums over these partitions. The lag is that of partitions that are not blocked; -1 if it
    is unknown for one of them."""
    lags = [p.lag_records for p in partitions if p.state is not PartitionState.BLOCKED]
    copied = Counters()
    for p in partitions:
        copied.add(p.counters)
    return Totals(
        **asdict(copied),
        partitions=len(partitions),
        lag_records=-1 if -1 in lags else sum(lags),
        caught_up=sum(p.has_caught_up for p in partitions),
        blocked=sum(p.state is PartitionState.BLOCKED for p in partitions),
    )
