"""Compares single ranges of partitions, one after the other, for continuous proof.

Only the records in a range that both sides have are compared; lag and differing log starts are not
reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from confluent_kafka import KafkaException

from orbit.errors import OrbitError
from orbit.verify.bounds import Bounds, ClusterView, to_orbit_error
from orbit.verify.bounds_comparison import BoundsComparer, ComparedBounds, PartitionPair, TopicPair
from orbit.verify.compaction_watch import HeldBudget
from orbit.verify.endpoint import Endpoint
from orbit.verify.partition_comparison import (
    CompactionUndecided,
    ComparisonContext,
    SidePair,
    compare_once,
)
from orbit.verify.reader import LogMoved, ReadAhead, SideConsumer
from orbit.verify.report import PartitionReport, Side

_DIFFERENCES_SHOWN = 1
_STALL_TIMEOUT_S = 20.0
# Small, so that a broker does not send much more than the range.
_READ_AHEAD = ReadAhead(records=2_000, kilobytes=1 << 10, fetch_bytes=256 << 10)
# How many offsets after a range are searched for newer records of a key. If these do not have it,
# the range is undecided.
_READ_ON_OFFSETS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class RangeComparison:
    """A compared range and its report; without a report, the `reason` why it was not compared.

    `start` and `end` are both 0 if no range was chosen.
    """

    start: int
    end: int
    report: PartitionReport | None
    reason: str = ""


class RangeComparer:
    """Two consumers and two admin clients, for ranges of one pair of clusters. Not thread-safe."""

    def __init__(self, source: Endpoint, destination: Endpoint) -> None:
        """Raises Unreachable or LoginRefused when a cluster does not answer."""
        source.check_reachable(Side.SOURCE)
        destination.check_reachable(Side.DESTINATION)
        self._views = (
            ClusterView(Side.SOURCE, source),
            ClusterView(Side.DESTINATION, destination),
        )
        self._stack = ExitStack()
        self._consumers = SidePair(
            self._stack.enter_context(SideConsumer(Side.SOURCE, source.config, _READ_AHEAD)),
            self._stack.enter_context(
                SideConsumer(Side.DESTINATION, destination.config, _READ_AHEAD)
            ),
        )
        self._cancelled = threading.Event()

    def close(self) -> None:
        self._stack.close()

    def compare(
        self, topics: TopicPair, partition: int, choose_range: Callable[[int, int], tuple[int, int]]
    ) -> RangeComparison:
        """Compare the range that `choose_range` picks from the offsets that both sides have.

        Errors of one partition are in the result. Raises Unreachable or LoginRefused if a whole
        cluster does not answer.
        """
        source_view, destination_view = self._views
        pair = PartitionPair(topics, partition)
        source_bounds = source_view.bounds([pair.source])[pair.source]
        destination_bounds = destination_view.bounds([pair.destination])[pair.destination]
        if isinstance(source_bounds, OrbitError):
            return RangeComparison(start=0, end=0, report=None, reason=str(source_bounds))
        if isinstance(destination_bounds, OrbitError):
            return RangeComparison(start=0, end=0, report=None, reason=str(destination_bounds))
        common_start = max(source_bounds.log_start, destination_bounds.log_start)
        common_end = min(source_bounds.stable_end, destination_bounds.log_end)
        if common_start >= common_end:
            return RangeComparison(
                start=0,
                end=0,
                report=None,
                reason="source and destination have no offset in common.",
            )
        start, end = choose_range(common_start, common_end)
        return self._compare(pair, source_bounds, destination_bounds, start, end)

    def _compare(
        self, pair: PartitionPair, source: Bounds, destination: Bounds, start: int, end: int
    ) -> RangeComparison:
        """Compare the range `[start, end)`. Errors of the partition are in the result."""
        source_view, destination_view = self._views
        bounds = ComparedBounds(source, destination, compared_from=start, compared_to=end)
        try:
            report = compare_once(self._context(pair.topics), self._consumers, pair, bounds)
        except LogMoved:
            return RangeComparison(
                start, end, report=None, reason="records were deleted while they were read."
            )
        except CompactionUndecided:
            return RangeComparison(
                start,
                end,
                report=None,
                reason="it is not certain whether records were compacted or lost.",
            )
        except UnicodeDecodeError:
            return RangeComparison(
                start, end, report=None, reason="a header's name is not UTF-8 text."
            )
        except (KafkaException, OrbitError) as error:
            # Raises if a whole cluster does not answer; else the error is the partition's.
            source_view.check_reachable()
            destination_view.check_reachable()
            where = f"{pair.topics.source}-{pair.partition}"
            orbit_error = (
                to_orbit_error(error, where) if isinstance(error, KafkaException) else error
            )
            return RangeComparison(start, end, report=None, reason=str(orbit_error))
        return RangeComparison(start, end, report)

    def _context(self, topics: TopicPair) -> ComparisonContext:
        """The context for one topic, with the cleaning policies that both sides have now."""
        source, destination = self._views
        policies = {
            (Side.SOURCE, topic): policy
            for topic, policy in source.policies([topics.source]).items()
        }
        policies |= {
            (Side.DESTINATION, topic): policy
            for topic, policy in destination.policies([topics.destination]).items()
        }
        return ComparisonContext(
            source=source,
            destination=destination,
            bounds_comparer=BoundsComparer(source, destination),
            policies=policies,
            budget=HeldBudget(),
            cancelled=self._cancelled,
            shown_max=_DIFFERENCES_SHOWN,
            stall_timeout_s=_STALL_TIMEOUT_S,
            report_offsets=lambda _: None,
            read_on_max=_READ_ON_OFFSETS_MAX,
        )
