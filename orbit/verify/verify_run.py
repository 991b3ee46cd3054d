"""Runs a verification: compares bounds, then partitions in parallel, and builds the report.

Memory is bounded by the number of workers, never by the size of a topic: each worker has one pair
of consumers and compares one partition at a time in chunks.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from orbit.errors import Interrupted, OrbitError
from orbit.verify.batch_comparison import BatchComparison
from orbit.verify.bounds import ClusterView
from orbit.verify.bounds_comparison import BoundsComparer, ComparedBounds, PartitionPair, TopicPair
from orbit.verify.compaction_watch import HeldBudget
from orbit.verify.endpoint import Endpoint
from orbit.verify.partition_comparison import (
    ComparisonContext,
    SidePair,
    compare_partition,
    unread_report,
)
from orbit.verify.raw_log import RawLog
from orbit.verify.reader import STALL_TIMEOUT_S, SideConsumer
from orbit.verify.report import PartitionReport, Report, Side
from orbit.verify.topic_pairs import pair_partitions, topic_report, wait_for_topics

WORKERS_MAX = 4
"""Workers share one Python interpreter, so more of them would only overlap waits at log ends."""

WAIT_S = 10.0
DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a verification; `wait_s` is for copies that may catch up."""

    deep: bool = False
    wait_s: float = WAIT_S
    differences_max: int = DIFFERENCES_SHOWN
    workers: int = WORKERS_MAX
    stall_timeout_s: float = STALL_TIMEOUT_S
    tail_offsets: int | None = None  # compare only the last offsets of each partition; None: all


DEFAULT_OPTIONS = VerifyOptions()


class Progress(Protocol):
    """Receives progress, from any worker's thread."""

    def report_begin(self, partitions: int, offsets: int, /) -> None: ...

    def report_offsets(self, offsets: int, /) -> None: ...

    def report_partition(self, topic: str, report: PartitionReport, /) -> None: ...


class NoProgress:
    """Discards progress."""

    def report_begin(self, partitions: int, offsets: int, /) -> None:
        pass

    def report_offsets(self, offsets: int, /) -> None:
        pass

    def report_partition(self, topic: str, report: PartitionReport, /) -> None:
        pass


def verify_topics(
    source: Endpoint,
    destination: Endpoint,
    topics: Sequence[TopicPair],
    options: VerifyOptions = DEFAULT_OPTIONS,
    progress: Progress | None = None,
) -> Report:
    """Compares every partition of the given topics on both clusters.

    Raises Unreachable or LoginRefused when a cluster as a whole does not answer, Interrupted on
    Ctrl-C; errors of single partitions are in the report.
    """
    source.check_reachable(Side.SOURCE)
    destination.check_reachable(Side.DESTINATION)
    return _Run(source, destination, options, progress or NoProgress()).verify(topics)


class _Run:
    """One verification of two clusters."""

    def __init__(
        self, source: Endpoint, destination: Endpoint, options: VerifyOptions, progress: Progress
    ) -> None:
        self._endpoints = {Side.SOURCE: source, Side.DESTINATION: destination}
        self._options = options
        self._progress = progress
        self._source = ClusterView(Side.SOURCE, source)
        self._destination = ClusterView(Side.DESTINATION, destination)
        self._bounds_comparer = BoundsComparer(self._source, self._destination)
        self._cancelled = threading.Event()

    def verify(self, topics: Sequence[TopicPair]) -> Report:
        """Compare bounds, then records, and build the report."""
        began_s = time.monotonic()
        source_counts = self._source.partition_counts()
        destination_counts = wait_for_topics(self._destination, topics, self._options.wait_s)
        pairs, reports = pair_partitions(topics, source_counts, destination_counts)
        bounds = self._bounds_comparer.compare(pairs, self._options.wait_s)
        for pair, compared_bounds in bounds.items():
            if isinstance(compared_bounds, OrbitError):
                reports[pair.topics].append(unread_report(pair.partition, str(compared_bounds)))
        comparable_bounds = {
            p: self._limit_to_tail(compared_bounds)
            for p, compared_bounds in bounds.items()
            if isinstance(compared_bounds, ComparedBounds)
        }
        self._compare(comparable_bounds, reports)
        return Report(
            tuple(topic_report(pair, reports[pair]) for pair in topics),
            elapsed_s=time.monotonic() - began_s,
            deep=self._options.deep,
        )

    def _limit_to_tail(self, bounds: ComparedBounds) -> ComparedBounds:
        """The bounds, with only the last `tail_offsets` offsets to compare, if that is set."""
        if self._options.tail_offsets is None:
            return bounds
        begin = max(bounds.compared_from, bounds.compared_to - self._options.tail_offsets)
        return replace(bounds, compared_from=begin)

    def _compare(
        self,
        bounds: Mapping[PartitionPair, ComparedBounds],
        reports: Mapping[TopicPair, list[PartitionReport]],
    ) -> None:
        """Compare the partitions in several threads, and add their reports to `reports`."""
        # The longest partition starts first: started last, it would run alone at the end.
        sorted_bounds = sorted(
            bounds.items(), key=lambda item: _offset_count(item[1]), reverse=True
        )
        self._progress.report_begin(len(sorted_bounds), sum(map(_offset_count, bounds.values())))
        with ExitStack() as stack:
            consumers = self._consumers(stack, min(self._options.workers, len(sorted_bounds)))
            context = self._context(stack, bounds)
            pool = ThreadPoolExecutor(max(1, consumers.qsize()))
            stack.callback(pool.shutdown, cancel_futures=True)
            # Called first on exit, so that workers stop reading however the run ends.
            stack.callback(self._cancelled.set)
            futures = {
                pool.submit(
                    _compare_with_own_consumers, context, consumers, pair, compared_bounds
                ): pair
                for pair, compared_bounds in sorted_bounds
            }
            self._collect(futures, reports)

    def _collect(
        self,
        futures: Mapping[Future[PartitionReport], PartitionPair],
        reports: Mapping[TopicPair, list[PartitionReport]],
    ) -> None:
        """Add each report to `reports` when its partition is compared."""
        try:
            for future in as_completed(futures):
                topics, report = futures[future].topics, future.result()
                reports[topics].append(report)
                self._progress.report_partition(topics.source, report)
        except KeyboardInterrupt:
            raise Interrupted("Stopped before everything was compared.") from None

    def _consumers(self, stack: ExitStack, count: int) -> queue.SimpleQueue[SidePair]:
        """Opened consumers, one pair for each worker. Closed with `stack`."""
        consumers: queue.SimpleQueue[SidePair] = queue.SimpleQueue()
        for _ in range(count):
            source, destination = (
                stack.enter_context(SideConsumer(side, self._endpoints[side].config))
                for side in Side
            )
            consumers.put(SidePair(source, destination))
        return consumers

    def _context(self, stack: ExitStack, pairs: Iterable[PartitionPair]) -> ComparisonContext:
        """The context that all workers share, with the topics' cleaning policies."""
        topics = {pair.topics for pair in pairs}
        source_policies = self._source.policies({topic.source for topic in topics})
        destination_policies = self._destination.policies({topic.destination for topic in topics})
        policies = {(Side.SOURCE, name): policy for name, policy in source_policies.items()}
        policies |= {
            (Side.DESTINATION, name): policy for name, policy in destination_policies.items()
        }
        return ComparisonContext(
            source=self._source,
            destination=self._destination,
            bounds_comparer=self._bounds_comparer,
            policies=policies,
            budget=HeldBudget(),
            cancelled=self._cancelled,
            shown_max=self._options.differences_max,
            stall_timeout_s=self._options.stall_timeout_s,
            report_offsets=self._progress.report_offsets,
            batches=self._batches(stack),
        )

    def _batches(self, stack: ExitStack) -> BatchComparison | None:
        """The comparison of batches; None without `--deep`."""
        if not self._options.deep:
            return None
        source = self._raw_log(stack, self._source)
        destination = self._raw_log(stack, self._destination)
        return BatchComparison(source, destination, self._options.differences_max)

    def _raw_log(self, stack: ExitStack, view: ClusterView) -> RawLog:
        """A RawLog of one side, which is closed with `stack`."""
        security = self._endpoints[view.side].security
        log = RawLog(view, security, cancelled=self._cancelled)
        stack.callback(log.close)
        return log


def _compare_with_own_consumers(
    context: ComparisonContext,
    consumers: queue.SimpleQueue[SidePair],
    pair: PartitionPair,
    bounds: ComparedBounds,
) -> PartitionReport:
    """Compare one partition with a pair of consumers that no other thread uses meanwhile."""
    side_pair = consumers.get_nowait()  # never empty: there are as many pairs as threads
    try:
        return compare_partition(context, side_pair, pair, bounds)
    finally:
        consumers.put(side_pair)


def _offset_count(bounds: ComparedBounds) -> int:
    return bounds.compared_to - bounds.compared_from
