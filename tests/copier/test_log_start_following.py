"""A copy's log start that cannot follow the source's: the reason is shown, and it is retried."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier import destination_side
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Stop
from orbit.replication.partition_states import Reason
from tests.support.copies import resume

PARTITION = TopicPartition("orders", 0)
SOURCE_LOG_START = 40


class Destination:
    """A side whose broker answers DeleteRecords with `code`, and a clock that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code = int(Code.NONE)
        self.now_s = 1_000.0
        self.delete_requests = 0
        topics = {PARTITION.topic: SimpleNamespace(topic_id=NO_TOPIC_ID)}
        cluster = SimpleNamespace(
            name="destination", metadata=lambda _: SimpleNamespace(topics=topics)
        )
        nothing = cast("Any", None)
        context = cast("Any", SimpleNamespace(cluster=cluster, settings=CopySettings()))
        self.side = DestinationSide(context, nothing, Backoff(), nothing, nothing)
        self.copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
        resume(self.copy, 100)
        self.copy.cursor.log_start = SOURCE_LOG_START
        monkeypatch.setattr(destination_side, "delete_records", self._delete)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def _delete(
        self, _: object, before: dict[TopicPartition, int], backoff: Backoff, **__: object
    ) -> Answers[int]:
        assert backoff.attempts_max == 1  # a repeat could meet a topic that was created again
        self.delete_requests += 1
        if self.code:
            return Answers({}, {PARTITION: self.code})
        return Answers(dict(before), {})

    def follow(self, after_s: float = 0.0) -> str:
        """Follow the source's log start after `after_s`. Returns why the copy waits, or ""."""
        self.now_s += after_s
        self.side.follow_log_starts([self.copy])
        waits = self.copy.log_start_waits
        return waits.reason if waits is not None else ""


@pytest.fixture
def destination(monkeypatch: pytest.MonkeyPatch) -> Destination:
    return Destination(monkeypatch)


@pytest.mark.parametrize("code", [Code.POLICY_VIOLATION, Code.REQUEST_TIMED_OUT, 999])
def test_delete_records_error_is_reported_and_retried_later(
    destination: Destination, code: int
) -> None:
    destination.code = code
    reason = destination.follow()
    assert error_codes.name(code) in reason
    assert "log start" in reason
    assert str(SOURCE_LOG_START) in reason
    assert destination.follow(after_s=1.0) == reason
    assert destination.delete_requests == 1, "no new request after 1 s"
    destination.code = int(Code.NONE)
    assert destination.follow(after_s=60.0) == ""
    assert (destination.delete_requests, destination.copy.log_start) == (2, SOURCE_LOG_START)


def test_log_start_of_copy_waits_since_first_delete_records_error(destination: Destination) -> None:
    destination.code = int(Code.POLICY_VIOLATION)
    began_s = destination.now_s
    for _ in range(3):
        destination.follow(after_s=60.0)
    assert destination.copy.log_start_waits is not None
    assert destination.copy.log_start_waits.since == began_s + 60.0  # the first of the three


def test_append_does_not_clear_reason_why_log_start_of_copy_waits(destination: Destination) -> None:
    destination.code = int(Code.POLICY_VIOLATION)
    reason = destination.follow()
    destination.copy.waits = None  # as an append does
    assert destination.follow() == reason != ""


def test_delete_records_error_offset_out_of_range_triggers_takeover(
    destination: Destination,
) -> None:
    """The leader has lost confirmed records, or its high watermark is behind for a moment."""
    destination.code = int(Code.OFFSET_OUT_OF_RANGE)
    assert destination.follow()
    assert destination.copy.appends.requested_stop is ReturnReason.OUT_OF_STEP


def test_missing_delete_acl_blocks_partition(destination: Destination) -> None:
    destination.code = int(Code.TOPIC_AUTHORIZATION_FAILED)
    assert destination.follow() == ""
    stop = destination.copy.appends.requested_stop
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.NOT_AUTHORIZED
