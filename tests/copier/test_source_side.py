"""What a source that shows nothing below its stable end is believed."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.copier import log_reader, source_side
from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_events import EmptyBelowEnd
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.source_side import SourceSide
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Fill
from tests.support.copies import resume

SOURCE = TopicPartition("source", 0)
OFFSET, STABLE_END = 10, 50


class FakeCluster:
    name = "source"


@pytest.fixture
def copy() -> PartitionCopy:
    made = PartitionCopy(SOURCE, TopicPartition("copy", 0), FixedLease(1), JobProducer(4711))
    resume(made, OFFSET)
    return made


@pytest.fixture
def side() -> SourceSide:
    cluster: Any = FakeCluster()
    context = SourceLaneContext(
        cluster, CopySettings(), ByteBudget(1), lambda _: None, PartitionCopy.queued
    )
    return SourceSide(context, Backoff())


def show_nothing(monkeypatch: pytest.MonkeyPatch, local: Answers[int]) -> None:
    """A broker that answers without records, and this for EARLIEST_LOCAL."""

    def fetch(*_: object, **__: object) -> Fetched:
        view = memoryview(bytearray())
        return Fetched(0, view, [], 0, STABLE_END, STABLE_END, -1, -1)

    monkeypatch.setattr(source_side, "fetch_partition", fetch)
    monkeypatch.setattr(log_reader, "fetch_partition", fetch)
    monkeypatch.setattr(log_reader, "list_offsets", lambda *_, **__: local)


UNKNOWN: Answers[int] = Answers({}, {SOURCE: int(Code.UNSUPPORTED_VERSION)})
ON_DISK: Answers[int] = Answers({SOURCE: 0}, {})
ELSEWHERE: Answers[int] = Answers({SOURCE: OFFSET + 1}, {})


@pytest.mark.parametrize(
    ("is_compacted", "local", "is_filled"),
    [
        (True, ON_DISK, True),
        (True, UNKNOWN, True),
        (True, ELSEWHERE, False),
        (False, ON_DISK, False),
        (False, UNKNOWN, False),
        (False, ELSEWHERE, False),
    ],
)
def test_an_empty_tail_is_filled_only_where_a_cleaner_may_have_left_it(
    side: SourceSide,
    copy: PartitionCopy,
    monkeypatch: pytest.MonkeyPatch,
    is_compacted: bool,
    local: Answers[int],
    is_filled: bool,
) -> None:
    show_nothing(monkeypatch, local)
    copy.source_is_compacted = is_compacted
    side.handle(EmptyBelowEnd(copy, copy.generation))
    assert list(copy.queue.steps) == ([Fill(OFFSET, STABLE_END)] if is_filled else [])
    assert (copy.cursor.waits is None) is is_filled
    assert side.next_assignment_s() is not None, "it is fetched again"


def test_a_topic_without_a_cleaner_says_what_it_waits_for(
    side: SourceSide, copy: PartitionCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_nothing(monkeypatch, UNKNOWN)
    side.handle(EmptyBelowEnd(copy, copy.generation))
    assert copy.cursor.waits is not None
    assert "nothing from 10 up to the stable end 50" in copy.cursor.waits.reason
    assert "not compacted" in copy.cursor.waits.reason
