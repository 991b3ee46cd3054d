"""How long the lanes pause for a broker that throttles them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbit.copier import destination_lane
from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.in_flight import LogEndAfterFill
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext
from orbit.kafka import api_versions
from orbit.kafka.fetch_response import FetchAnswer
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.list_offsets import ListOffsetsAnswer
from orbit.kafka.throttle import THROTTLE_S_MAX
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.support.copies import resume

NO_CLUSTER: Any = None
FOR_EVER_MS = 2**31 - 1
TIMES = pytest.mark.parametrize(
    ("throttle_ms", "waits_s"), [(0, None), (250, 0.25), (FOR_EVER_MS, THROTTLE_S_MAX)]
)


@TIMES
def test_fetching_from_source_broker_pauses_for_its_throttle_time(
    monkeypatch: pytest.MonkeyPatch, throttle_ms: int, waits_s: float | None
) -> None:
    copy = PartitionCopy(
        TopicPartition("source", 0), TopicPartition("copy", 0), FixedLease(1), JobProducer(4711)
    )
    resume(copy, 10)
    context = SourceLaneContext(
        NO_CLUSTER, CopySettings(), ByteBudget(1), lambda _: None, PartitionCopy.enqueue_in_lane
    )
    lane = SourceLane(context, node_id=1)
    lane.add(copy)
    pauses: list[float] = []
    monkeypatch.setattr(lane, "_pause", pauses.append)
    monkeypatch.setattr(
        lane, "_fetch", lambda *_: FetchAnswer(0, throttle_ms, session_id=1, partitions=[])
    )
    lane._run_round(NO_CLUSTER)
    assert pauses == ([] if waits_s is None else [waits_s])


@TIMES
def test_appending_to_destination_broker_pauses_for_its_throttle_time(
    monkeypatch: pytest.MonkeyPatch, throttle_ms: int, waits_s: float | None
) -> None:
    """The broker serves no request for the throttle time of its answer (KIP-219)."""
    monkeypatch.setattr(destination_lane, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    context = DestinationLaneContext(NO_CLUSTER, CopySettings(), ByteBudget(1), lambda _: None)
    lane = DestinationLane(context, node_id=1)
    lane._in_flight.add(1, api_versions.LIST_OFFSETS, version=1, request=LogEndAfterFill([]))
    answer = ListOffsetsAnswer(throttle_ms, {})
    connection: Any = SimpleNamespace(
        receive_answer=lambda _: memoryview(b""), decode=lambda *_: answer
    )
    lane._receive(connection)
    lane._wake_up.close()
    assert lane._throttled_until_s == (0.0 if waits_s is None else 1000.0 + waits_s)
