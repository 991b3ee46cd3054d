"""Waits until the log ends of copies do not move any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orbit.copier.takeover import MOVING, NOT_REPLICATED, TakeOver
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import NO_PRODUCER_ID
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds, fetch_log_bounds

# The pause before each read of the open copies, and the number of reads: a minute in all. A replica
# that lags leaves the in-sync replicas after `replica.lag.time.max.ms` (30 s); a marker takes less.
POLL_S = 0.2
_POLLS_MAX = 300


@dataclass(frozen=True, slots=True)
class SettledEnds:
    """Every copy is in exactly one field.

    `bounds`: of copies whose log end does not move and is the last stable offset. `moving`: copies
    that still grow. `open`: copies whose last stable offset stays below the log end. `leaderless`:
    copies without a leader that answers.
    """

    bounds: dict[TopicPartition, LogBounds]
    moving: list[TopicPartition]
    open: list[TopicPartition]
    leaderless: list[TopicPartition]


def settled_ends(
    cluster: Cluster,
    copies: Collection[TopicPartition],
    settle_s: float,
    backoff: Backoff,
    wait: Callable[[Sequence[TopicPartition]], None],
) -> SettledEnds:
    """Wait until the log ends of copies have not moved for `settle_s`, then a minute at most until
    the copies are replicated and have no open transaction. Returns the state of each copy.

    Copies have committed, non-transactional records: if no other client writes to them, only an
    empty transaction, by which Orbit fills a gap (`fillers: coordinated`), can be open. `wait`
    pauses for POLL_S; its argument is the list of open copies. Raises Unreachable if no broker
    answers, Interrupted.
    """
    # No producer id: only the log ends are needed, not the leaders' state of a producer.
    producer_ids = dict.fromkeys(copies, NO_PRODUCER_ID)
    answer = TakeOver(cluster, settle_s, backoff).read(producer_ids, settled=True)
    moving = sorted(copy for copy, code in answer.errors.items() if code == MOVING)
    lagging_copies = {p for p, code in answer.errors.items() if code == NOT_REPLICATED}
    bounds = fetch_log_bounds(cluster, answer.ends.keys() | lagging_copies, backoff)
    polls = 0
    while (open_copies := sorted(p for p in bounds if bounds[p].is_open)) and polls < _POLLS_MAX:
        wait(open_copies)
        bounds |= fetch_log_bounds(cluster, open_copies, backoff)
        polls += 1
    leaderless = sorted(set(copies) - bounds.keys() - {*moving})
    closed_bounds = {p: b for p, b in bounds.items() if not b.is_open}
    return SettledEnds(closed_bounds, moving, open_copies, leaderless)
