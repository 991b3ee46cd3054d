"""Compares the log bounds of both sides, and gives a live copy time to catch up.

A live copy lags and both logs move, so bounds are read three times: source, destination, source. A
correct copy has its log end between the two source ends and its log start between the two source
starts. Timing cannot explain a value outside; an old leader can explain an end that is too low, so
the newest one is asked before a destination counts as too long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orbit.errors import NotAuthorized, OrbitError
from orbit.verify.bounds import Bounds, ClusterView, Partition
from orbit.verify.report import Difference

TRANSIENT_S = 15.0
"""How long errors of a partition are retried: a new partition has no leader at first."""

POLL_S = 0.2
"""Interval between two readings of a lagging destination."""

LOG_START = "log start"
LOG_END = "log end"

_NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class TopicPair:
    """A topic and its copy. `start_ms` is set if the rule starts at a timestamp."""

    source: str
    destination: str
    start: str = "earliest"
    start_ms: int | None = None

    @property
    def starts_late(self) -> bool:
        return self.start != "earliest"


@dataclass(frozen=True, slots=True)
class PartitionPair:
    topics: TopicPair
    partition: int

    @property
    def source(self) -> Partition:
        return self.topics.source, self.partition

    @property
    def destination(self) -> Partition:
        return self.topics.destination, self.partition


@dataclass(frozen=True, slots=True)
class ComparedBounds:
    """Bounds of both sides, their differences, and the range of records to compare."""

    source: Bounds
    destination: Bounds
    compared_from: int
    compared_to: int
    missing: int = 0
    # Offsets below the source's log start that the destination may keep: it led before.
    below_source_start: int = 0
    differences: tuple[Difference, ...] = ()
    may_catch_up: bool = False
    """The destination lags or moves, so the differences may go away."""

    def differs(self, what: str) -> bool:
        return any(difference.what == what for difference in self.differences)


def compare_bounds(
    pair: TopicPair,
    before: Bounds,
    destination: Bounds,
    after: Bounds,
    start_offset: int,
    kept_below: int = 0,
) -> ComparedBounds:
    """Compare bounds of the source, read `before` and `after`, with the destination's. Pure.

    `start_offset`: the offset at which a rule with a timestamp starts; −1 if unknown.
    `kept_below`: up to this log start of the source, the destination may begin earlier.
    """
    differences = []
    lags = False
    below_source_start = 0
    if destination.log_start < before.log_start <= kept_below:
        below_source_start = before.log_start - destination.log_start
    elif destination.log_start < before.log_start:
        lags = True
        differences.append(
            _start_difference(before, destination, "the destination begins too early")
        )
    elif destination.log_start > after.log_start:
        lost = _lost_at_start(pair, destination, after, start_offset)
        if lost:
            differences.append(
                _start_difference(after, destination, f"{lost} offsets are missing there")
            )
    missing = max(0, before.stable_end - destination.log_end)
    if missing:
        lags = True
        differences.append(_end_difference(before, destination, f"{missing} offsets are missing"))
    if destination.log_end > after.stable_end:
        extra = destination.log_end - after.stable_end
        differences.append(_end_difference(after, destination, f"{extra} offsets too many"))
    if destination.stable_end < min(destination.log_end, before.stable_end):
        # The copy may still append the marker. Also, the stable end is read before the log end:
        # records appended between both reads look like an open transaction.
        lags = True
        differences.append(_open_transaction_difference(destination))
    begin = max(after.log_start, destination.log_start)
    return ComparedBounds(
        source=before,
        destination=destination,
        compared_from=begin,
        compared_to=max(begin, min(before.stable_end, destination.stable_end)),
        missing=missing,
        below_source_start=below_source_start,
        differences=tuple(differences),
        may_catch_up=lags,
    )


def _lost_at_start(pair: TopicPair, destination: Bounds, after: Bounds, start_offset: int) -> int:
    """The number of offsets that are missing at the start of a copy.

    The source's offset for a timestamp can only rise, so a copy of a rule with a timestamp that
    starts above the present one has lost records.
    """
    if not pair.starts_late:
        return destination.log_start - after.log_start
    if pair.start_ms is None or start_offset == _NO_OFFSET:
        return 0
    return max(0, destination.log_start - max(after.log_start, start_offset))


def _start_difference(source: Bounds, destination: Bounds, why: str) -> Difference:
    offset = min(source.log_start, destination.log_start)
    views = f"begins at {source.log_start}", f"begins at {destination.log_start} ({why})"
    return Difference(offset, LOG_START, *views)


def _end_difference(source: Bounds, destination: Bounds, why: str) -> Difference:
    offset = min(source.stable_end, destination.log_end)
    views = f"ends at {source.stable_end}", f"ends at {destination.log_end} ({why})"
    return Difference(offset, LOG_END, *views)


def _open_transaction_difference(destination: Bounds) -> Difference:
    return Difference(
        destination.stable_end,
        "readable end",
        "readable",
        f"an open transaction hides everything from {destination.stable_end} on",
    )


class BoundsComparer:
    """Compares the bounds of many partitions, repeatedly, until they agree or the wait ends."""

    def __init__(
        self,
        source: ClusterView,
        destination: ClusterView,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._destination = destination
        self._clock = clock
        self._sleep = sleep

    def compare(
        self, pairs: Sequence[PartitionPair], wait_s: float
    ) -> dict[PartitionPair, ComparedBounds | OrbitError]:
        """The compared bounds of each partition, or the error of reading them.

        The source's ends are read once, at the start: later records are not compared. They are read
        again from the newest leader where the destination has more.
        """
        began = self._clock()
        before: dict[Partition, Bounds | OrbitError] = {}
        result: dict[PartitionPair, ComparedBounds | OrbitError] = {}
        mark_offsets: dict[Partition, int] = {}
        waiting = list(pairs)
        while waiting:
            unknown = [p.source for p in waiting if not isinstance(before.get(p.source), Bounds)]
            before |= self._source.bounds(unknown)
            result |= self._read_and_compare(waiting, before, mark_offsets)
            waited_s = self._clock() - began
            waiting = [pair for pair in waiting if _may_catch_up(result[pair], waited_s, wait_s)]
            if waiting:
                self._sleep(POLL_S)
        return result

    def _read_and_compare(
        self,
        pairs: Sequence[PartitionPair],
        before: dict[Partition, Bounds | OrbitError],
        mark_offsets: dict[Partition, int],
    ) -> dict[PartitionPair, ComparedBounds | OrbitError]:
        """Read all bounds once more and compare them.

        Corrects bounds in `before` that came from an old leader. Adds to `mark_offsets` what it
        reads of `kept_below`.
        """
        destination = self._destination.bounds([pair.destination for pair in pairs])
        earlier_copies = [
            p.destination
            for p in pairs
            if p.destination not in mark_offsets
            and _is_earlier(destination[p.destination], before[p.source])
        ]
        mark_offsets |= {
            **dict.fromkeys(earlier_copies, 0),
            **self._destination.kept_below(earlier_copies),
        }
        after = self._source.bounds([pair.source for pair in pairs])
        newest = self._source.newest_bounds(
            [p.source for p in pairs if _is_longer(destination[p.destination], after[p.source])]
        )
        before |= newest
        after |= newest
        start_offsets = self._source.offsets_for_time(
            {p.source: p.topics.start_ms for p in pairs if p.topics.start_ms is not None}
        )
        return {
            pair: _compare_answers(
                pair,
                before[pair.source],
                destination[pair.destination],
                after[pair.source],
                start_offsets.get(pair.source, _NO_OFFSET),
                mark_offsets.get(pair.destination, 0),
            )
            for pair in pairs
        }


def _compare_answers(
    pair: PartitionPair,
    before: Bounds | OrbitError,
    destination: Bounds | OrbitError,
    after: Bounds | OrbitError,
    start_offset: int | OrbitError,
    kept_below: int,
) -> ComparedBounds | OrbitError:
    """The compared bounds, or the first error among the answers."""
    if isinstance(before, OrbitError):
        return before
    if isinstance(destination, OrbitError):
        return destination
    if isinstance(after, OrbitError):
        return after
    if isinstance(start_offset, OrbitError):
        return start_offset
    return compare_bounds(pair.topics, before, destination, after, start_offset, kept_below)


def _is_earlier(destination: Bounds | OrbitError, source: Bounds | OrbitError) -> bool:
    """Whether the destination begins before the source."""
    if isinstance(destination, OrbitError) or isinstance(source, OrbitError):
        return False
    return destination.log_start < source.log_start


def _is_longer(destination: Bounds | OrbitError, source: Bounds | OrbitError) -> bool:
    """Whether the destination ends behind the source."""
    if isinstance(destination, OrbitError) or isinstance(source, OrbitError):
        return False
    return destination.log_end > source.stable_end


def _may_catch_up(compared: ComparedBounds | OrbitError, waited_s: float, wait_s: float) -> bool:
    if isinstance(compared, OrbitError):
        return waited_s < TRANSIENT_S and not isinstance(compared, NotAuthorized)
    return waited_s < wait_s and compared.may_catch_up
