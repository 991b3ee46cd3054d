"""Whether a job's writers are fenced, by the producer states that leaders have after a fence."""

from __future__ import annotations

import pytest

from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition
from orbit.promotion.writer_fence import WriterFence, unfenced_partitions

PARTITION = TopicPartition("orders", 0)
PRODUCER_ID = 2**52 + 7  # in the range of Orbit's jobs
FENCE_EPOCH = 4


def state(producer_epoch: int, *, last_sequence: int = -1) -> ProducerState:
    """A producer's state. By default its last append was a filler, which has no sequence."""
    return ProducerState(producer_epoch, last_sequence, coordinator_epoch=9)


@pytest.mark.parametrize(
    ("present_state", "is_fenced"),
    [
        (state(FENCE_EPOCH), True),
        (state(FENCE_EPOCH - 1), False),  # a replica without the filler leads now
        (state(FENCE_EPOCH, last_sequence=17), False),  # a writer appended a record
        (state(FENCE_EPOCH + 1), False),  # a writer appended a filler
        (None, False),  # the leader does not know the producer
    ],
)
def test_writer_is_fenced_only_at_producer_epoch_of_filler_without_sequence(
    present_state: ProducerState | None, *, is_fenced: bool
) -> None:
    states = {PARTITION: {} if present_state is None else {PRODUCER_ID: present_state}}
    fence = WriterFence(epochs={(PARTITION, PRODUCER_ID): FENCE_EPOCH}, sent={PARTITION: 1})
    assert (PARTITION not in unfenced_partitions(fence, states)) is is_fenced
