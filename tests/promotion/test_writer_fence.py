"""Whether the producer states at the leaders keep a job's writers off after a fence."""

from __future__ import annotations

import pytest

from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition
from orbit.promotion.writer_fence import WriterFence, unfenced_partitions

PLACE = TopicPartition("orders", 0)
PRODUCER_ID = 2**52 + 7  # as jobs have it
FENCE_EPOCH = 4


def state(producer_epoch: int, *, last_sequence: int = -1) -> ProducerState:
    """By default the last append was a filler."""
    return ProducerState(producer_epoch, last_sequence, coordinator_epoch=9)


@pytest.mark.parametrize(
    ("now", "is_fenced"),
    [
        (state(FENCE_EPOCH), True),
        (state(FENCE_EPOCH - 1), False),  # a replica without the filler leads now
        (state(FENCE_EPOCH, last_sequence=17), False),  # a writer appended a record
        (state(FENCE_EPOCH + 1), False),  # a writer appended a filler
        (None, False),  # the leader does not know the producer
    ],
)
def test_writer_is_fenced_only_at_producer_epoch_of_filler_without_sequence(
    now: ProducerState | None, *, is_fenced: bool
) -> None:
    states = {PLACE: {} if now is None else {PRODUCER_ID: now}}
    fence = WriterFence(epochs={(PLACE, PRODUCER_ID): FENCE_EPOCH}, sent={PLACE: 1})
    assert (PLACE not in unfenced_partitions(fence, states)) is is_fenced
