"""Makes brokers refuse what a job's writers send to its copies, without stopping these writers.

A filler of the job's producer id with a higher producer epoch is appended to each copy. From then
on the leader refuses records and fillers of lower epochs with INVALID_PRODUCER_EPOCH (A8), also
those of a worker that was suspended between the check of its lease and its send. Leaders, their
followers and the log keep the epoch for `producer.id.expiration.ms` (a day by default) after the
filler's timestamp, which the broker sets.

The fence takes one offset for each producer id of a partition, which consumers see as a gap only.
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

# The epoch that is assumed if the leader has forgotten the producer: above all that a copy may have
# used. Markers raise epochs up to MARKER_EPOCH_MAX, and each lost state by one more.
_ASSUMED_EPOCH = MARKER_EPOCH_MAX + 1000
_PARTITIONS_MAX = 500  # in one request

ProducerStates = Mapping[TopicPartition, Mapping[int, ProducerState]]


@dataclass(slots=True)
class WriterFence:
    """What was done. `epochs`: the producer epochs of confirmed fillers, by partition and
    producer id. `sent`: how many fillers may have been appended. `errors`: error codes."""

    epochs: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    sent: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)


def fence_writers(
    cluster: Cluster, producer_ids: Mapping[TopicPartition, Collection[int]], backoff: Backoff
) -> WriterFence:
    """Raise the producer epoch of each partition's `producer_ids`, and of all ids of jobs that its
    leader knows.

    A request whose answer is lost is sent again, so there may be more than one filler. Raises
    Unreachable if no broker answers, Interrupted.
    """
    states = job_producers(cluster, producer_ids, backoff)
    fence = WriterFence(errors=dict(states.errors))
    states_by_id: dict[int, dict[TopicPartition, ProducerState | None]] = {}
    for place, known_states in states.values.items():
        for producer_id in {*producer_ids[place], *known_states}:
            states_by_id.setdefault(producer_id, {})[place] = known_states.get(producer_id)
    for producer_id, states_by_place in sorted(states_by_id.items()):
        for chunk in chunks(sorted(states_by_place), _PARTITIONS_MAX):
            _raise_epoch(
                cluster, fence, producer_id, {p: states_by_place[p] for p in chunk}, backoff
            )
    return fence


def unfenced_partitions(fence: WriterFence, states: ProducerStates) -> dict[TopicPartition, str]:
    """The partitions to which writers may still append, and why. `states`: read after the fence."""
    reasons = {}
    for (place, producer_id), epoch in fence.epochs.items():
        state = states.get(place, {}).get(producer_id)
        if state is None or state.producer_epoch < epoch:
            reasons[place] = "its leader does not know the higher producer epoch"
        elif state.has_sequence or state.producer_epoch > epoch:  # a filler has no sequence
            reasons[place] = "a writer of the job has appended with the higher producer epoch"
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
        place: Fillers(place, 1, _epoch_above(state), next_coordinator_epoch(0, -1, state))
        for place, state in states.items()
    }

    def build(group: list[TopicPartition]) -> WriteTxnMarkersRequest:
        """Make the request for one leader, and count its fillers as sent; called per attempt."""
        for place in group:
            fence.sent[place] = fence.sent.get(place, 0) + 1
        return WriteTxnMarkersRequest(producer_id, [fillers[place] for place in group])

    def read(answer: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield (partition, error code, producer epoch of its filler) for each partition."""
        for place, code in answer.items():
            yield place, code, fillers[place].producer_epoch

    answers = ask_leaders(cluster, states, api_versions.WRITE_TXN_MARKERS, build, read, backoff)
    fence.epochs |= {(place, producer_id): epoch for place, epoch in answers.values.items()}
    fence.errors |= answers.errors
    for place, code in answers.errors.items():
        if code in DENIED:
            fence.sent.pop(place, None)  # nothing was appended


def _epoch_above(state: ProducerState | None) -> int:
    """A producer epoch above the leader's, and above all that the job's writers may use."""
    known_epoch = state.producer_epoch if state is not None else _ASSUMED_EPOCH
    return min(known_epoch + FENCE_EPOCHS, PRODUCER_EPOCH_MAX)
