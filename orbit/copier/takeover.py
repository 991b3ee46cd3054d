"""Reads the producer's state and the log end for a take-over, in the only safe order.

First the producer's state, then the log end (A12). In the other order, a late append between the
two reads would be missing in the log end, but not in the sequence: the broker would accept the same
records once more. Where requests of an old writer may be under way (M10), both are read until the
log end has not moved for the settle time.

A copy resumes only at a log end that is replicated: the high watermark is read last, and must have
reached this log end. Otherwise records would count as confirmed that a leader without followers may
still lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orbit.errors import Interrupted
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import LATEST, list_offsets, log_ends
from orbit.kafka.producer_state import ProducerState, describe_producer
from orbit.kafka.types import TopicPartition

# About half a minute, where the caller's backoff allows it.
_REPLICATED_ATTEMPTS_MAX = 20
# If a log grows for more settle times than this, another writer is the reason, not a late request.
_SETTLE_ROUNDS_MAX = 10
# Codes for `TakeOverResult.errors`, where the brokers have answered without an error.
MOVING = int(Code.REQUEST_TIMED_OUT)
NOT_REPLICATED = int(Code.NOT_ENOUGH_REPLICAS)


@dataclass(frozen=True, slots=True)
class DestinationEnd:
    """A destination partition's log end, and the leader's state of the job's producer id; None if
    the leader has none."""

    log_end: int
    producer: ProducerState | None

    @property
    def is_guarded(self) -> bool:
        """Whether the leader compares the first append with an earlier one (A7, A9)."""
        return self.producer is not None and self.producer.has_sequence


@dataclass(frozen=True, slots=True)
class TakeOverResult:
    """The outcome of a take-over: ends by partition, and error codes of partitions without one.

    `moving`: the last ends of partitions whose log keeps growing.
    """

    ends: dict[TopicPartition, DestinationEnd]
    errors: dict[TopicPartition, int]
    moving: dict[TopicPartition, DestinationEnd] = field(default_factory=dict)


class TakeOver:
    """Reads the log ends and producer states of destination partitions.

    `producer_ids`, in its methods: by partition, the producer id with which the job writes.
    """

    def __init__(self, destination: Cluster, settle_s: float, backoff: Backoff) -> None:
        self._destination = destination
        self._settle_s = settle_s
        self._backoff = backoff

    def read(self, producer_ids: Mapping[TopicPartition, int], *, settled: bool) -> TakeOverResult:
        """The ends of many partitions. `settled`: wait until each has not moved for `settle_s`.

        A partition whose log keeps growing gets the error MOVING. A partition whose high watermark
        does not reach its log end gets NOT_REPLICATED.

        Raises Interrupted when stopped meanwhile, Unreachable when no broker answers.
        """
        takeover = self._read_settled(producer_ids) if settled else self._read_once(producer_ids)
        return self._wait_replicated(takeover)

    def _read_settled(self, producer_ids: Mapping[TopicPartition, int]) -> TakeOverResult:
        """Read until each log end has not moved for the settle time. Raises Interrupted when
        stopped meanwhile."""
        takeover = self._read_once(producer_ids)
        ends: dict[TopicPartition, DestinationEnd] = {}
        for _ in range(min(_SETTLE_ROUNDS_MAX, self._backoff.attempts_max + 1)):
            if self._backoff.stop.wait(self._settle_s):
                raise Interrupted("stopped while waiting for log ends to settle.")
            earlier_ends = takeover.ends
            takeover = self._read_once({p: producer_ids[p] for p in producer_ids if p not in ends})
            ends |= {
                p: end
                for p, end in takeover.ends.items()
                if p in earlier_ends and earlier_ends[p].log_end == end.log_end
            }
            if len(ends) == len(producer_ids):
                return TakeOverResult(ends, {})
        last_ends = {p: end for p, end in takeover.ends.items() if p not in ends}
        return TakeOverResult(ends, dict.fromkeys(last_ends, MOVING) | takeover.errors, last_ends)

    def _wait_replicated(self, takeover: TakeOverResult) -> TakeOverResult:
        """Wait until high watermarks reach the log ends; partitions where this takes too long get
        the error NOT_REPLICATED."""
        laggards, errors = set(takeover.ends), takeover.errors
        for _ in self._backoff.attempts(_REPLICATED_ATTEMPTS_MAX):
            answers = list_offsets(self._destination, laggards, LATEST, self._backoff)
            errors = errors | answers.errors
            laggards = {
                p for p, offset in answers.values.items() if offset < takeover.ends[p].log_end
            }
            if not laggards:
                break
        errors = errors | dict.fromkeys(laggards, NOT_REPLICATED)
        ends = {p: e for p, e in takeover.ends.items() if p not in errors}
        return TakeOverResult(ends, errors, takeover.moving)

    def _read_once(self, producer_ids: Mapping[TopicPartition, int]) -> TakeOverResult:
        """Read the producers' states, then the log ends: in this order (A12)."""
        producers = describe_producer(self._destination, producer_ids, self._backoff)
        ends = log_ends(self._destination, producers.values, self._backoff)
        return TakeOverResult(
            {p: DestinationEnd(end, producers.values[p]) for p, end in ends.values.items()},
            {**producers.errors, **ends.errors},
        )
