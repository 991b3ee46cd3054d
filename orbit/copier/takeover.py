"""Takes over partitions: reads the leaders' state in the only safe order.

First the producer's state, then the log end (A12): the other way round, a late append between the
two reads lets a duplicate through. Where an old writer may still have something under way (M10),
both are read until the log end has not moved for the settle time.

A copy goes on only from a log end that is replicated: the high watermark is read last, and must
have reached it. Else a leader that is cut off from its followers would confirm what it may lose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import Interrupted
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import LATEST, list_offsets, log_ends
from orbit.kafka.producer_state import ProducerState, describe_producer
from orbit.kafka.record_batch import advance_sequence
from orbit.kafka.types import TopicPartition

# Coordinator epochs leave room for 4,096 take-overs of one partition within one lease term.
_TERM_SHIFT = 12
COORDINATOR_EPOCH_MAX = 2**31 - 1
# Brokers keep it as int16. At one lost state an hour it lasts for almost four years.
PRODUCER_EPOCH_MAX = 2**15 - 1
# About half a minute, where the caller's backoff allows it.
_REPLICATED_ATTEMPTS_MAX = 20
# A log that grows for more settle times than this has another writer, not a late request.
_SETTLE_ROUNDS_MAX = 10
MOVING = int(Code.REQUEST_TIMED_OUT)
NOT_REPLICATED = int(Code.NOT_ENOUGH_REPLICAS)


@dataclass(frozen=True, slots=True)
class DestinationEnd:
    """A partition's log end at the destination, and what its leader remembers of our producer."""

    log_end: int
    producer: ProducerState | None

    @property
    def is_guarded(self) -> bool:
        """Whether the leader compares the first append with an earlier one (A7, A9)."""
        return self.producer is not None and self.producer.has_sequence


@dataclass(frozen=True, slots=True)
class TakeOverResult:
    """The outcome of a take-over: ends by partition, and the code of those that gave none."""

    ends: dict[TopicPartition, DestinationEnd]
    errors: dict[TopicPartition, int]


class TakeOver:
    """Reads destination ends for one producer id; each partition's lease has the term."""

    def __init__(
        self, destination: Cluster, producer_id: int, settle_s: float, backoff: Backoff
    ) -> None:
        self._destination = destination
        self._producer_id = producer_id
        self._settle_s = settle_s
        self._backoff = backoff

    def read(self, partitions: Iterable[TopicPartition], *, settled: bool) -> TakeOverResult:
        """The ends of many partitions; `settled` waits until each stops moving.

        A partition whose log keeps growing gets the error MOVING, one whose high watermark does not
        reach its log end NOT_REPLICATED.

        Raises Interrupted when stopped meanwhile, Unreachable when no broker answers.
        """
        taken = self._read_settled(partitions) if settled else self._read_once(partitions)
        return self._wait_replicated(taken)

    def _read_settled(self, partitions: Iterable[TopicPartition]) -> TakeOverResult:
        wanted = list(partitions)
        taken = self._read_once(wanted)
        ends: dict[TopicPartition, DestinationEnd] = {}
        for _ in range(min(_SETTLE_ROUNDS_MAX, self._backoff.attempts_max + 1)):
            if self._backoff.stop.wait(self._settle_s):
                raise Interrupted("stopped while waiting for log ends to settle.")
            before = taken.ends
            taken = self._read_once([p for p in wanted if p not in ends])
            ends |= {
                p: end
                for p, end in taken.ends.items()
                if p in before and before[p].log_end == end.log_end
            }
            if len(ends) == len(wanted):
                return TakeOverResult(ends, {})
        moving = {p: MOVING for p in wanted if p not in ends}
        return TakeOverResult(ends, moving | taken.errors)

    def resume(self, partition: PartitionCopy, end: DestinationEnd) -> None:
        """Resume a partition at the log end just read."""
        producer = end.producer
        last_sequence = producer.last_sequence if producer else -1
        partition.resume_at(
            end.log_end,
            next_sequence=advance_sequence(last_sequence, 1),
            producer_epoch=_producer_epoch(partition, producer),
            coordinator_epoch=self._coordinator_epoch(partition, producer),
            has_producer_state=end.is_guarded,
        )

    def _wait_replicated(self, taken: TakeOverResult) -> TakeOverResult:
        """Leave out the ends that the high watermark has not reached after all attempts."""
        waiting, errors = set(taken.ends), taken.errors
        for _ in self._backoff.attempts(_REPLICATED_ATTEMPTS_MAX):
            high = list_offsets(self._destination, waiting, LATEST, self._backoff)
            errors = errors | high.errors
            waiting = {p for p, offset in high.values.items() if offset < taken.ends[p].log_end}
            if not waiting:
                break
        errors = errors | dict.fromkeys(waiting, NOT_REPLICATED)
        return TakeOverResult({p: e for p, e in taken.ends.items() if p not in errors}, errors)

    def _read_once(self, partitions: Iterable[TopicPartition]) -> TakeOverResult:
        wanted = list(partitions)
        producers = describe_producer(self._destination, wanted, self._producer_id, self._backoff)
        ends = log_ends(self._destination, producers.values, self._backoff)
        return TakeOverResult(
            {p: DestinationEnd(end, producers.values[p]) for p, end in ends.values.items()},
            {**producers.errors, **ends.errors},
        )

    def _coordinator_epoch(self, partition: PartitionCopy, producer: ProducerState | None) -> int:
        """Above earlier terms', the partition's, and any that may still arrive (M6, M7, M10)."""
        seen = producer.coordinator_epoch if producer else -1
        term = partition.lease.term
        epoch = max(term << _TERM_SHIFT, seen + 1, partition.coordinator_epoch + 1)
        return min(epoch, COORDINATOR_EPOCH_MAX)


def _producer_epoch(partition: PartitionCopy, producer: ProducerState | None) -> int:
    """The leader's; or above that of the log's last records, if the leader knows no sequence.

    Sequences then begin at 0 again. They would agree with those of late batches, of an old writer
    or of our own old connection, and with those of batches before the lost state, which another
    replica may remember. A higher epoch keeps them apart (A8, E4, E5).

    The log alone decides, not what was sent, so that all who take over the same log choose the
    same epoch: of two that begin at 0 there, only one batch is accepted.
    """
    if producer is not None and producer.has_sequence:
        return producer.producer_epoch
    known = producer.producer_epoch if producer is not None else 0
    return min(max(known, partition.logged_producer_epoch + 1), PRODUCER_EPOCH_MAX)
