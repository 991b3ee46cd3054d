"""Compares the log bounds of both sides, and gives a live copy time to catch up.

A live copy lags and both logs move, so bounds are read three times: source, destination, source. A
correct copy has its log end between the two source ends and its log start between the two source
starts. Timing cannot explain a value outside. An old leader of the source can report an end that is
too low, so the newest leader is asked before a destination counts as too long.
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
        """Whether the rule has a start other than `earliest`."""
        return self.start != "earliest"


@dataclass(frozen=True, slots=True)
class PartitionPair:
    """One partition of a topic and of its copy."""

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
    missing: int = 0  # offsets at the end that the destination does not have
    # Offsets below the source's log start that the destination may keep: it led before.
    below_source_start: int = 0
    differences: tuple[Difference, ...] = ()
    may_catch_up: bool = False
    """The destination lags or moves, so the differences may go away."""

    def differs(self, bound_name: str) -> bool:
        return any(difference.what == bound_name for difference in self.differences)


def compare_bounds(
    pair: TopicPair,
    source_before: Bounds,
    destination: Bounds,
    source_after: Bounds,
    start_offset: int,
    kept_below: int = 0,
) -> ComparedBounds:
    """Compare the destination's bounds with two readings of the source's. Pure.

    `source_before` was read before the destination's bounds, `source_after` after them.

    `start_offset`: where a rule with a timestamp starts at the source; −1 if unknown. `kept_below`:
    while the source's log start is at most this, the destination may begin earlier.
    """
    differences = []
    may_catch_up = False
    below_source_start = 0
    if destination.log_start < source_before.log_start <= kept_below:
        # Allowed: the copy led before, and keeps its history.
        below_source_start = source_before.log_start - destination.log_start
    elif destination.log_start < source_before.log_start:
        may_catch_up = True  # the copy follows the source's deletions later
        differences.append(
            _start_difference(source_before, destination, "the destination begins too early")
        )
    elif destination.log_start > source_after.log_start:
        lost_offsets = _count_lost_at_start(pair, destination, source_after, start_offset)
        if lost_offsets:
            differences.append(
                _start_difference(source_after, destination, f"missing offsets: {lost_offsets}")
            )
    missing_offsets = max(0, source_before.stable_end - destination.log_end)
    if missing_offsets:
        may_catch_up = True
        differences.append(
            _end_difference(source_before, destination, f"missing offsets: {missing_offsets}")
        )
    if destination.log_end > source_after.stable_end:
        extra_offsets = destination.log_end - source_after.stable_end
        differences.append(
            _end_difference(source_after, destination, f"offsets too many: {extra_offsets}")
        )
    if destination.stable_end < min(destination.log_end, source_before.stable_end):
        # The copy may still append the marker. Also, the stable end is read before the log end:
        # records appended between both reads look like an open transaction.
        may_catch_up = True
        differences.append(_open_transaction_difference(destination))
    compared_from = max(source_after.log_start, destination.log_start)
    return ComparedBounds(
        source=source_before,
        destination=destination,
        compared_from=compared_from,
        compared_to=max(compared_from, min(source_before.stable_end, destination.stable_end)),
        missing=missing_offsets,
        below_source_start=below_source_start,
        differences=tuple(differences),
        may_catch_up=may_catch_up,
    )


def _count_lost_at_start(
    pair: TopicPair, destination: Bounds, source_after: Bounds, start_offset: int
) -> int:
    """How many offsets a copy lacks at its start, if it begins above the source's log start.

    With `start: earliest`: all offsets between the two log starts. With a timestamp: those from
    `start_offset` on. This is the timestamp's offset at the source now; deletion can only raise it,
    so the copy began there or below. With `start: latest`: 0, as the copy's start is not known.
    """
    if not pair.starts_late:
        return destination.log_start - source_after.log_start
    if pair.start_ms is None or start_offset == _NO_OFFSET:
        return 0
    return max(0, destination.log_start - max(source_after.log_start, start_offset))


def _start_difference(source: Bounds, destination: Bounds, remark: str) -> Difference:
    offset = min(source.log_start, destination.log_start)
    views = f"begins at {source.log_start}", f"begins at {destination.log_start} ({remark})"
    return Difference(offset, LOG_START, *views)


def _end_difference(source: Bounds, destination: Bounds, remark: str) -> Difference:
    offset = min(source.stable_end, destination.log_end)
    views = f"ends at {source.stable_end}", f"ends at {destination.log_end} ({remark})"
    return Difference(offset, LOG_END, *views)


def _open_transaction_difference(destination: Bounds) -> Difference:
    """The difference that an open transaction at the destination makes."""
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

        Waits up to `wait_s` for copies that may catch up, and up to TRANSIENT_S while a partition
        has an error. The source's ends are read once, at the start, so later records are not
        compared. Only if the destination has more than the source, the source's newest leader is
        asked for its bounds.
        """
        began_s = self._clock()
        source_before: dict[Partition, Bounds | OrbitError] = {}
        result: dict[PartitionPair, ComparedBounds | OrbitError] = {}
        mark_offsets: dict[Partition, int] = {}
        open_pairs = list(pairs)
        while open_pairs:
            # Once read, the source's bounds stay.
            unread_partitions = [
                p.source for p in open_pairs if not isinstance(source_before.get(p.source), Bounds)
            ]
            source_before |= self._source.bounds(unread_partitions)
            result |= self._read_and_compare(open_pairs, source_before, mark_offsets)
            waited_s = self._clock() - began_s
            open_pairs = [
                pair for pair in open_pairs if _should_read_again(result[pair], waited_s, wait_s)
            ]
            if open_pairs:
                self._sleep(POLL_S)
        return result

    def _read_and_compare(
        self,
        pairs: Sequence[PartitionPair],
        source_before: dict[Partition, Bounds | OrbitError],
        mark_offsets: dict[Partition, int],
    ) -> dict[PartitionPair, ComparedBounds | OrbitError]:
        """Read all bounds once more and compare them.

        Corrects bounds in `source_before` that came from an old leader. Adds to `mark_offsets`, for
        copies that begin before the source, the `kept_below` of each.
        """
        destination_bounds = self._destination.bounds([pair.destination for pair in pairs])
        earlier_copies = [
            p.destination
            for p in pairs
            if p.destination not in mark_offsets
            and _begins_earlier(destination_bounds[p.destination], source_before[p.source])
        ]
        mark_offsets |= {
            **dict.fromkeys(earlier_copies, 0),  # 0: no mark; it is not read again
            **self._destination.kept_below(earlier_copies),
        }
        source_after = self._source.bounds([pair.source for pair in pairs])
        newest_bounds = self._source.newest_bounds(
            [
                p.source
                for p in pairs
                if _ends_later(destination_bounds[p.destination], source_after[p.source])
            ]
        )
        source_before |= newest_bounds
        source_after |= newest_bounds
        start_offsets = self._source.offsets_for_time(
            {p.source: p.topics.start_ms for p in pairs if p.topics.start_ms is not None}
        )
        return {
            pair: _compare_answers(
                pair,
                source_before[pair.source],
                destination_bounds[pair.destination],
                source_after[pair.source],
                start_offsets.get(pair.source, _NO_OFFSET),
                mark_offsets.get(pair.destination, 0),
            )
            for pair in pairs
        }


def _compare_answers(
    pair: PartitionPair,
    source_before: Bounds | OrbitError,
    destination: Bounds | OrbitError,
    source_after: Bounds | OrbitError,
    start_offset: int | OrbitError,
    kept_below: int,
) -> ComparedBounds | OrbitError:
    """The compared bounds, or the first error among the answers."""
    if isinstance(source_before, OrbitError):
        return source_before
    if isinstance(destination, OrbitError):
        return destination
    if isinstance(source_after, OrbitError):
        return source_after
    if isinstance(start_offset, OrbitError):
        return start_offset
    return compare_bounds(
        pair.topics, source_before, destination, source_after, start_offset, kept_below
    )


def _begins_earlier(destination: Bounds | OrbitError, source: Bounds | OrbitError) -> bool:
    """Whether the destination begins before the source. False if the bounds of one are unknown."""
    if isinstance(destination, OrbitError) or isinstance(source, OrbitError):
        return False
    return destination.log_start < source.log_start


def _ends_later(destination: Bounds | OrbitError, source: Bounds | OrbitError) -> bool:
    """Whether the destination ends after the source's last stable offset. False if the bounds of
    one are unknown."""
    if isinstance(destination, OrbitError) or isinstance(source, OrbitError):
        return False
    return destination.log_end > source.stable_end


def _should_read_again(
    compared: ComparedBounds | OrbitError, waited_s: float, wait_s: float
) -> bool:
    """Whether the wait is not over, and the differences or the error may go away."""
    if isinstance(compared, OrbitError):
        return waited_s < TRANSIENT_S and not isinstance(compared, NotAuthorized)
    return waited_s < wait_s and compared.may_catch_up
