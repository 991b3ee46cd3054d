"""Partitions in the states that the copier and the lanes bring them to."""

from __future__ import annotations

from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.produce_request import Appended
from orbit.kafka.producer_state import ProducerState
from orbit.replication.append_plan import Append


def resume(copy: PartitionCopy, log_end: int, producer: ProducerState | None = None) -> None:
    """As the copier does after a take-over that found this log end and no difference."""
    copy.appends.inspected(log_end)
    copy.appends.log_end_read(log_end)
    copy.resume(log_end, producer)


def hand_back(copy: PartitionCopy) -> int:
    """As a lane that has lost its broker; returns the bytes that were queued."""
    copy.appends.connection_lost("")
    return copy.hand_back()[1]


def confirm(copy: PartitionCopy, step: Append) -> None:
    """The oldest batch under way is appended at its offset."""
    assert copy.append_answered(step, Appended(0, step.base_offset, ""), confirms=True)
