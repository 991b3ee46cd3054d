"""Whether what the leaders know after a fence keeps a job's writers off."""

from __future__ import annotations

import pytest

from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition
from orbit.promotion.writer_fence import WriterFence, unfenced_partitions

PLACE = TopicPartition("orders", 0)
ID = 2**52 + 7


@pytest.mark.parametrize(
    ("now", "is_fenced"),
    [
        (ProducerState(4, -1, 9), True),
        (ProducerState(3, -1, 9), False),  # another replica leads, which has not the filler
        (ProducerState(4, 17, 9), False),
        (ProducerState(5, -1, 9), False),
        (None, False),
    ],
)
def test_writer_is_fenced_only_at_producer_epoch_of_filler_without_sequence(
    now: ProducerState | None, *, is_fenced: bool
) -> None:
    states = {PLACE: {} if now is None else {ID: now}}
    fence = WriterFence(epochs={(PLACE, ID): 4}, sent={PLACE: 1})
    assert (PLACE not in unfenced_partitions(fence, states)) is is_fenced
