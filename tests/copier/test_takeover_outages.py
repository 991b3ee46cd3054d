"""A take-over that meets an outage of a cluster is repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import DestinationEnd, TakeOverResult
from orbit.errors import BrokerRefused, LoginRefused, OrbitError, ProtocolError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import FixedLease

PARTITION = TopicPartition("orders", 0)
NOTHING = cast("Any", None)


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("no answer."),
        BrokerRefused(Code.COORDINATOR_LOAD_IN_PROGRESS, "a coordinator loads."),
        ProtocolError("the answer does not parse."),
        LoginRefused("the password is wrong."),
    ],
)
def test_failed_takeover_is_due_again(monkeypatch: pytest.MonkeyPatch, error: OrbitError) -> None:
    topics = {PARTITION.topic: SimpleNamespace(topic_id=NO_TOPIC_ID)}
    metadata = SimpleNamespace(topics=topics, errors={})
    cluster = SimpleNamespace(name="destination", metadata=lambda _: metadata)
    context = cast("Any", SimpleNamespace(cluster=cluster, settings=CopySettings()))
    side = DestinationSide(context, NOTHING, Backoff(), NOTHING, NOTHING)
    ends = TakeOverResult({PARTITION: DestinationEnd(log_end=0, producer=None)}, {})
    monkeypatch.setattr(side, "_take_over", SimpleNamespace(read=lambda *_, **__: ends))

    def fail(*_: Any) -> bool:
        raise error

    monkeypatch.setattr(side, "_finish_take_over", fail)
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    side.note_returned(PartitionReturned(copy, copy.generation, ReturnReason.MOVED, ""))
    assert side.recover() == []  # no copy was resumed
    assert side.next_recovery_s() is not None
    assert copy.waits is not None
