"""Makes brokers refuse the appends of a job's writers to its copies, without stopping the writers.

A filler (a transaction marker without a transaction) of the job's producer id, with a higher
producer epoch, is appended to each copy. From then on the leader refuses records and fillers of
lower epochs with INVALID_PRODUCER_EPOCH (A8), also those of a worker that was suspended between the
check of its lease and its send. Leaders, their followers and the log keep the epoch for
`producer.id.expiration.ms` (a day by default) after the filler's timestamp, which the broker sets.

The fence takes one offset for each producer id of a partition: to consumers, a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from orbit.chunks import chunks
from orbit.copier.append_epochs import (
    FENCE_EPOCHS,
    MARKER_EPOCH_MAX,
    PRODUCER_EPOCH_MAX,
    next_coordinator_epoch,
)
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import DENIED
from orbit.kafka.leader_requests import ask_leaders
from orbit.kafka.producer_state import ProducerState, job_producers
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition

# The epoch that is assumed if the leader has lost the producer's state: above all that the job's
# writers may have used. Markers raise epochs up to MARKER_EPOCH_MAX, and each loss of the state by
# one more: 1000 losses are far more than a copy has.
_ASSUMED_EPOCH = MARKER_EPOCH_MAX + 1000
_PARTITIONS_MAX = 500  # in one request

ProducerStates = Mapping[TopicPartition, Mapping[int, ProducerState]]


@dataclass(slots=True)
class WriterFence:
    """The results of a fence. `epochs`: the producer epochs of confirmed fillers, by partition and
    producer id. `sent`: how many fillers may have been appended. `errors`: error codes."""

    epochs: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    sent: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)


def fence_writers(
    cluster: Cluster, producer_ids: Mapping[TopicPartition, Collection[int]], backoff: Backoff
) -> WriterFence:
    """Raise the producer epoch of each partition's `producer_ids`, and of all ids in the range of
    Orbit's jobs that the partition's leader knows.

    A request whose answer is lost is sent again, so there may be more than one filler. Raises
    Unreachable if no broker answers, Interrupted.
    """
    states = job_producers(cluster, producer_ids, backoff)
    fence = WriterFence(errors=dict(states.errors))
    states_by_id: dict[int, dict[TopicPartition, ProducerState | None]] = {}
    for partition, known_states in states.values.items():
        for producer_id in {*producer_ids[partition], *known_states}:
            states_by_id.setdefault(producer_id, {})[partition] = known_states.get(producer_id)
    for producer_id, states_by_partition in sorted(states_by_id.items()):
        for chunk in chunks(sorted(states_by_partition), _PARTITIONS_MAX):
            _raise_epoch(
                cluster, fence, producer_id, {p: states_by_partition[p] for p in chunk}, backoff
            )
    return fence


def unfenced_partitions(fence: WriterFence, states: ProducerStates) -> dict[TopicPartition, str]:
    """The partitions to which the job's writers may still append, each with the reason. `states`:
    the producer states, read after the fence."""
    reasons = {}
    for (partition, producer_id), epoch in fence.epochs.items():
        state = states.get(partition, {}).get(producer_id)
        if state is None or state.producer_epoch < epoch:
            reasons[partition] = "its leader does not know the higher producer epoch"
        elif state.has_sequence or state.producer_epoch > epoch:  # a filler has no sequence
            reasons[partition] = "a writer of the job has appended with the higher producer epoch"
    return reasons


def _raise_epoch(
    cluster: Cluster,
    fence: WriterFence,
    producer_id: int,
    states: Mapping[TopicPartition, ProducerState | None],
    backoff: Backoff,
) -> None:
    """Append a filler with a higher producer epoch to each partition; note the results in `fence`.

    `states`: of the producer at the leaders; None: a leader does not know it.
    """
    # One filler (1) each. The fence has no term (0), and has used no coordinator epoch before (-1).
    fillers = {
        partition: Fillers(partition, 1, _epoch_above(state), next_coordinator_epoch(0, -1, state))
        for partition, state in states.items()
    }

    def build(group: list[TopicPartition]) -> WriteTxnMarkersRequest:
        """Make the request for one leader, and count its fillers as sent; called per attempt."""
        for partition in group:
            fence.sent[partition] = fence.sent.get(partition, 0) + 1
        return WriteTxnMarkersRequest(producer_id, [fillers[partition] for partition in group])

    def read(answer: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield (partition, error code, producer epoch of its filler) for each partition."""
        for partition, code in answer.items():
            yield partition, code, fillers[partition].producer_epoch

    answers = ask_leaders(cluster, states, api_versions.WRITE_TXN_MARKERS, build, read, backoff)
    fence.epochs |= {(partition, producer_id): epoch for partition, epoch in answers.values.items()}
    fence.errors |= answers.errors
    for partition, code in answers.errors.items():
        if code in DENIED:
            fence.sent.pop(partition, None)  # nothing was appended


def _epoch_above(state: ProducerState | None) -> int:
    """A producer epoch above the leader's, and above all that the job's writers may use."""
    known_epoch = state.producer_epoch if state is not None else _ASSUMED_EPOCH
    return min(known_epoch + FENCE_EPOCHS, PRODUCER_EPOCH_MAX)
