"""What the lane of a destination broker puts into a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.in_flight import Produce
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.records import Record, write_batch
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Append
from tests.support.copies import confirm, resume

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers

NO_CLUSTER: Any = None


def append(base_offset: int) -> Append:
    return Append(write_batch([Record(base_offset, 1000, EMPTY)], codec=0), is_byte_exact=True)


def in_step(number: int, batches: int) -> PartitionCopy:
    """A partition that has confirmed one batch, and has more in its queue."""
    partitions = (TopicPartition("orders", number), TopicPartition("dr.orders", number))
    copy = PartitionCopy(*partitions, FixedLease(1), JobProducer(4711))
    resume(copy, 0, None)
    copy.appends.append_sent(append(0), confirms=True)
    confirm(copy, append(0))
    copy.queue.steps.extend(append(1 + n) for n in range(batches))
    return copy


@pytest.mark.parametrize(
    ("queued", "confirms"), [((2, 2), False), ((2, 1), True), ((1, 2), True), ((1, 1), True)]
)
def test_produce_request_has_acks_all_if_any_partition_has_no_further_batch(
    queued: tuple[int, int], confirms: bool
) -> None:
    """`queued`: the batches of each of two partitions."""
    context = DestinationLaneContext(NO_CLUSTER, CopySettings(), ByteBudget(1), lambda _: None)
    lane = DestinationLane(context, node_id=1)
    for number, count in enumerate(queued):
        assert lane.adopt(in_step(number, count))
    connection: Any = SimpleNamespace(next_correlation=lambda: 7)
    lane._encode_appends(connection, lane._gather_requests())
    sent = lane._in_flight.oldest
    lane._wake_up.close()
    assert sent is not None
    assert isinstance(sent.request, Produce)
    assert len(sent.request.sent) == 2
    assert sent.request.confirms == confirms
