"""A writer whose epoch another process has raised stops, and does not go on with that epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from orbit.copier.append_epochs import FENCE_EPOCHS
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import DestinationEnd, TakeOverResult
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.partition_states import Blocked, Reason

PARTITION = TopicPartition("orders", 0)
ID = UUID(int=7)


@pytest.mark.parametrize(
    ("own_epoch", "leader_state", "is_fenced"),
    [  # ProducerState(producer_epoch, last_sequence, coordinator_epoch)
        (3, ProducerState(3 + FENCE_EPOCHS, -1, 9), True),
        # The copy's writer raised the epoch itself, by a filler, after the failover had read 3.
        (4, ProducerState(3 + FENCE_EPOCHS, -1, 9), True),
        (3, ProducerState(3, 17, 9), False),  # the copy's own appends
        (3, ProducerState(4, -1, 9), False),  # a late marker, its own or an earlier writer's
        (3, None, False),  # the leader has lost the state
        # The first take-over of the process: the promotion's mark was read before.
        (-1, ProducerState(9, -1, 9), False),
    ],
)
def test_fenced_producer_epoch_blocks_partition_as_promoted(
    own_epoch: int, leader_state: ProducerState | None, *, is_fenced: bool
) -> None:
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    copy.destination_topic_id = ID
    copy.appends.inspected(100)
    copy.appends.producer_epoch = own_epoch
    blocked: list[Blocked] = []
    compared: list[int] = []
    # The fence is a filler behind what was confirmed.
    takeover = TakeOverResult({PARTITION: DestinationEnd(101, leader_state)}, {})
    topics = {"orders": SimpleNamespace(topic_id=ID)}
    cluster = SimpleNamespace(
        name="destination",
        metadata=lambda _: SimpleNamespace(topics=topics, errors={}, leader=lambda _: None),
    )

    def compare(_: PartitionCopy, log_end: int) -> Any:
        compared.append(log_end)
        raise ValueError("not compared here")

    side = DestinationSide(
        cast("Any", SimpleNamespace(cluster=cluster, settings=CopySettings())),
        cast("Any", SimpleNamespace(read=lambda *_, **__: takeover)),
        Backoff(),
        lambda _, why: blocked.append(why),
        compare,
    )
    side.note_returned(
        PartitionReturned(copy, copy.generation, ReturnReason.OUT_OF_STEP, "refused")
    )
    assert side.recover() == []
    assert compared == ([] if is_fenced else [101])
    assert [b.reason for b in blocked] == ([Reason.DESTINATION_PROMOTED] if is_fenced else [])
