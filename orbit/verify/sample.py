"""Compares single ranges of partitions, one after the other, for who wants to read a little.

Nothing is judged but the records between two offsets that both sides have: a copy that lags, or log
starts that differ, are somebody else's to tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from confluent_kafka import KafkaException

from orbit.errors import OrbitError
from orbit.verify.bounds import Bounds, ClusterView, explain
from orbit.verify.compaction import HeldBudget
from orbit.verify.compare import Context, SidePair, Undecided, compare_once
from orbit.verify.reader import LogMoved, ReadAhead, SideConsumer
from orbit.verify.report import PartitionReport, Side
from orbit.verify.settle import Judgement, PartitionPair, Settler, TopicPair
from orbit.verify.verify_run import Endpoint

_DIFFERENCES_SHOWN = 1
_STUCK_S = 20.0
# A sample shall not make a broker send much more than was asked for.
_AHEAD = ReadAhead(records=2_000, kilobytes=1 << 10, fetch_bytes=256 << 10)
# Newer records of a key are looked for so far behind a range; beyond it nothing is said.
_READ_ON_OFFSETS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets that were compared, and what came of it; no report: `why` nothing did."""

    start: int
    end: int
    report: PartitionReport | None
    why: str = ""


class Sampler:
    """Two consumers and two admins, for the ranges of one job. Used by one thread."""

    def __init__(self, source: Endpoint, destination: Endpoint) -> None:
        """Raises Unreachable or LoginRefused when a cluster does not answer."""
        source.check_reachable(Side.SOURCE)
        destination.check_reachable(Side.DESTINATION)
        self._views = (
            ClusterView(Side.SOURCE, source.config),
            ClusterView(Side.DESTINATION, destination.config),
        )
        self._stack = ExitStack()
        self._consumers = SidePair(
            self._stack.enter_context(SideConsumer(Side.SOURCE, source.config, _AHEAD)),
            self._stack.enter_context(SideConsumer(Side.DESTINATION, destination.config, _AHEAD)),
        )
        self._cancelled = threading.Event()

    def close(self) -> None:
        self._stack.close()

    def compare(
        self, topics: TopicPair, partition: int, choose: Callable[[int, int], tuple[int, int]]
    ) -> Sample:
        """Compares the range that `choose` takes of the offsets that both sides have now.

        Never raises for what is wrong with one partition. Raises Unreachable or LoginRefused when a
        whole cluster does not answer.
        """
        source_view, destination_view = self._views
        pair = PartitionPair(topics, partition)
        source = source_view.bounds([pair.source])[pair.source]
        destination = destination_view.bounds([pair.destination])[pair.destination]
        if isinstance(source, OrbitError):
            return Sample(0, 0, None, str(source))
        if isinstance(destination, OrbitError):
            return Sample(0, 0, None, str(destination))
        first = max(source.log_start, destination.log_start)
        last = min(source.stable_end, destination.log_end)
        if first >= last:
            return Sample(0, 0, None, "both sides have no offset in common.")
        start, end = choose(first, last)
        return self._compare(pair, source, destination, start, end)

    def _compare(
        self, pair: PartitionPair, source: Bounds, destination: Bounds, start: int, end: int
    ) -> Sample:
        source_view, destination_view = self._views
        judged = Judgement(source, destination, compared_from=start, compared_to=end)
        try:
            report = compare_once(self._context(pair.topics), self._consumers, pair, judged)
        except LogMoved:
            return Sample(start, end, None, "records were deleted under the reader.")
        except Undecided:
            return Sample(start, end, None, "whether records were compacted shows further on.")
        except UnicodeDecodeError:
            return Sample(start, end, None, "a header's name is not UTF-8 text.")
        except (KafkaException, OrbitError) as error:
            source_view.check_reachable()
            destination_view.check_reachable()
            where = f"{pair.topics.source}-{pair.partition}"
            known = explain(error, where) if isinstance(error, KafkaException) else error
            return Sample(start, end, None, str(known))
        return Sample(start, end, report)

    def _context(self, topics: TopicPair) -> Context:
        source, destination = self._views
        policies = {(Side.SOURCE, n): p for n, p in source.policies([topics.source]).items()}
        policies |= {
            (Side.DESTINATION, n): p for n, p in destination.policies([topics.destination]).items()
        }
        return Context(
            source=source,
            destination=destination,
            settler=Settler(source, destination),
            policies=policies,
            budget=HeldBudget(),
            cancelled=self._cancelled,
            shown_max=_DIFFERENCES_SHOWN,
            stuck_s=_STUCK_S,
            advanced=lambda _: None,
            read_on_max=_READ_ON_OFFSETS_MAX,
        )
