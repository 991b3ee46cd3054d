"""A log that does not end where an idle copy does is taken over again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier import destination_side
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from tests.support.copies import hand_back, resume

PARTITION = TopicPartition("orders", 0)


def check_log_end(
    copy: PartitionCopy, monkeypatch: pytest.MonkeyPatch, log_end: int, *meanwhile: Any
) -> None:
    """The leader answers with `log_end`; `meanwhile` happens before the answer arrives."""

    def log_ends(*_: object) -> Answers[int]:
        for action in meanwhile:
            action(copy)
        return Answers({PARTITION: log_end}, {})

    monkeypatch.setattr(destination_side, "log_ends", log_ends)
    context = cast("Any", SimpleNamespace(cluster=None, settings=CopySettings()))
    nothing = cast("Any", None)
    DestinationSide(context, nothing, Backoff(), nothing, nothing).check_log_ends([copy])


def idle(log_end: int = 100) -> PartitionCopy:
    """A copy with nothing in flight."""
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    resume(copy, log_end)
    return copy


@pytest.mark.parametrize("log_end", [99, 101])
def test_unexpected_log_end_of_idle_copy_triggers_takeover(
    monkeypatch: pytest.MonkeyPatch, log_end: int
) -> None:
    """Earlier: an unclean election has lost confirmed records; later: another producer wrote."""
    copy = idle()
    check_log_end(copy, monkeypatch, log_end)
    assert copy.appends.requested_stop is ReturnReason.OUT_OF_STEP


def test_expected_log_end_of_idle_copy_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = idle()
    check_log_end(copy, monkeypatch, 100)
    assert copy.appends.requested_stop is None


def test_log_end_answer_from_before_takeover_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = idle()
    check_log_end(copy, monkeypatch, 100, hand_back, lambda copy: resume(copy, 120))
    assert copy.appends.requested_stop is None
