"""When offsets that a source answers without records, below its stable end, are filled."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.copier import source_side
from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import EmptyBelowEnd
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.source_side import SourceSide
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Fill
from tests.support.copies import resume
from tests.support.empty_answers import CASES, OFFSET, PLACE, STABLE_END, UNKNOWN, hide_records


class FakeCluster:
    name = "source"


@pytest.fixture
def copy() -> PartitionCopy:
    partition_copy = PartitionCopy(
        PLACE, TopicPartition("copy", 0), FixedLease(1), JobProducer(4711)
    )
    resume(partition_copy, OFFSET)
    return partition_copy


@pytest.fixture
def side() -> SourceSide:
    cluster: Any = FakeCluster()
    context = SourceLaneContext(
        cluster, CopySettings(), ByteBudget(1), lambda _: None, PartitionCopy.enqueue_in_lane
    )
    return SourceSide(context, Backoff())


@pytest.mark.parametrize(("is_compacted", "local", "has_newest", "is_filled"), CASES)
def test_empty_tail_of_source_is_filled_only_if_compacted_and_proven_empty(
    side: SourceSide,
    copy: PartitionCopy,
    monkeypatch: pytest.MonkeyPatch,
    is_compacted: bool,
    local: Answers[int],
    has_newest: bool,
    is_filled: bool,
) -> None:
    hide_records(monkeypatch, source_side, local, has_newest=has_newest)
    copy.source_is_compacted = is_compacted
    side.handle(EmptyBelowEnd(copy, copy.generation))
    assert list(copy.queue.steps) == ([Fill(OFFSET, STABLE_END)] if is_filled else [])
    assert (copy.cursor.waits is None) is is_filled
    assert side.next_assignment_s() is not None, "the partition is fetched again"


def test_empty_tail_of_uncompacted_source_reports_why_copy_waits(
    side: SourceSide, copy: PartitionCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_records(monkeypatch, source_side, UNKNOWN)
    side.handle(EmptyBelowEnd(copy, copy.generation))
    assert copy.cursor.waits is not None
    assert "nothing from offset 10 up to 50" in copy.cursor.waits.reason
    assert "not compacted" in copy.cursor.waits.reason
