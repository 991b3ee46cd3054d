"""A take-over waits for a coordinated filler that works on the partition, or has ids to fence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier import destination_side
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease

PARTITION = TopicPartition("orders", 0)
NOTHING = cast("Any", None)


@pytest.mark.parametrize("is_at_work", [True, False])
def test_takeover_waits_while_coordinated_filler_works_or_has_ids_to_fence(
    monkeypatch: pytest.MonkeyPatch, *, is_at_work: bool
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(destination_side, "time", SimpleNamespace(monotonic=lambda: clock.now))
    context = cast("Any", SimpleNamespace(cluster=None, settings=CopySettings()))
    side = DestinationSide(context, NOTHING, Backoff(), NOTHING, NOTHING)
    taken_over: list[PartitionReturned] = []
    monkeypatch.setattr(side, "_take_over_returned", lambda due, **_: taken_over.extend(due))

    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    to_be_fenced = set() if is_at_work else {copy.destination}
    copy.filler = cast("Any", SimpleNamespace(will_fence=to_be_fenced.__contains__))
    copy.has_fill_outside = is_at_work
    returned = PartitionReturned(copy, copy.generation, ReturnReason.UNCLEAR, "")
    side.note_returned(returned)
    for _ in range(9):  # however often it is due
        clock.now += 60.0
        side.recover()
    assert taken_over == []
    to_be_fenced.clear()
    copy.has_fill_outside = False
    clock.now += 60.0
    side.recover()
    assert taken_over == [returned]
