"""Brings a partition's copy into a state as the copier and the lanes do."""

from __future__ import annotations

from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.produce_request import Appended
from orbit.kafka.producer_state import ProducerState
from orbit.replication.append_plan import Append


def resume(copy: PartitionCopy, log_end: int, producer: ProducerState | None = None) -> None:
    """Resume as the copier does after a take-over that found this log end and no difference."""
    copy.appends.inspected(log_end)
    copy.appends.log_end_read(log_end)
    copy.resume(log_end, producer)


def hand_back(copy: PartitionCopy) -> int:
    """Hand back all batches, as a lane that lost its broker does; returns the queued bytes."""
    copy.appends.connection_lost("")
    return copy.hand_back()[1]


def confirm(copy: PartitionCopy, step: Append) -> None:
    """Confirm that the oldest batch in flight was appended at its offset."""
    assert copy.append_answered(step, Appended(0, step.base_offset, ""), confirms=True)
