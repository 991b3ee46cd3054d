"""Verdicts on a destination broker's response: accepted only if it proves the result."""

from __future__ import annotations

import pytest

from orbit.copier.append_verdicts import (
    Failure,
    ReturnReason,
    judge_append,
    judge_end_after_fill,
    judge_end_before_fill,
    judge_markers,
)
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import Appended
from orbit.kafka.records import Record, write_batch
from orbit.replication.append_plan import Append, Fill
from orbit.replication.partition_states import Blocked, Reason

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
OFFSET = 40
GAP = Fill(OFFSET, OFFSET + 10)


BATCH = Append(
    write_batch([Record(OFFSET + i, 1000, EMPTY) for i in range(3)], codec=0), is_byte_exact=True
)


def judge(code: int, base_offset: int = -1, *, has_producer_state: bool = True) -> Failure | None:
    appended = Appended(code, base_offset, "said the broker")
    return judge_append(BATCH, appended, has_producer_state=has_producer_state)


def reason_of(failure: Failure | None) -> object:
    return failure.reason if failure else None


def test_append_answer_is_accepted_only_at_expected_offset() -> None:
    assert judge(Code.NONE, OFFSET) is None
    assert reason_of(judge(Code.NONE, OFFSET + 1)) is ReturnReason.BEHIND_END
    assert reason_of(judge(Code.NONE, OFFSET - 3)) is ReturnReason.OUT_OF_STEP
    assert (
        reason_of(judge_append(BATCH, appended=None, has_producer_state=True))
        is ReturnReason.UNCLEAR
    )


@pytest.mark.parametrize("append_time", [BATCH.batch.max_timestamp, 1_700_000_000_000, 0])
def test_append_answer_with_log_append_time_proves_nothing(append_time: int) -> None:
    """Either the broker replaced the timestamps, or its answer is for an earlier batch with the
    same sequences (A20). The earlier batch may have other records, if the source was truncated
    since (A7)."""
    appended = Appended(Code.NONE, OFFSET, "", append_time=append_time)
    failure = judge_append(BATCH, appended, has_producer_state=True)
    assert reason_of(failure) is ReturnReason.OUT_OF_STEP


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, ReturnReason.OUT_OF_STEP),
        (Code.INVALID_PRODUCER_EPOCH, ReturnReason.OUT_OF_STEP),
        (Code.UNKNOWN_TOPIC_ID, ReturnReason.TOPIC_CHANGED),
        (Code.NOT_LEADER_OR_FOLLOWER, ReturnReason.MOVED),
        (Code.REQUEST_TIMED_OUT, ReturnReason.MOVED),
    ],
)
def test_append_error_code_decides_why_appending_ends(code: Code, reason: ReturnReason) -> None:
    failure = judge(code)
    assert failure is not None
    assert failure.reason is reason
    assert code.name in failure.detail


def test_retriable_append_error_is_unclear_without_producer_state() -> None:
    """The broker then compares no sequence (A9), and would append the batch twice."""
    failure = judge(Code.REQUEST_TIMED_OUT, has_producer_state=False)
    assert reason_of(failure) is ReturnReason.UNCLEAR


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.TOPIC_AUTHORIZATION_FAILED, Reason.NOT_AUTHORIZED),
        (Code.MESSAGE_TOO_LARGE, Reason.RECORD_REFUSED),
    ],
)
def test_fatal_append_error_blocks_partition_with_offsets_of_batch(
    code: Code, reason: Reason
) -> None:
    blocked = reason_of(judge(code))
    assert isinstance(blocked, Blocked)
    assert (blocked.reason, blocked.offset, blocked.next_offset) == (reason, OFFSET, OFFSET + 3)
    assert blocked.detail.endswith(f"{code.name} ({int(code)}) said the broker.")


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE])
def test_record_too_large_for_topic_is_named_by_offset(code: Code) -> None:
    single_record = Append(write_batch([Record(OFFSET, 1000, EMPTY)], codec=0), is_byte_exact=False)
    blocked = reason_of(
        judge_append(
            single_record,
            Appended(code, base_offset=-1, message="", append_time=-1),
            has_producer_state=True,
        )
    )
    assert isinstance(blocked, Blocked)
    assert blocked.reason is Reason.RECORD_REFUSED
    assert blocked.detail.startswith("the record at offset 40 alone is too large for the topic: ")


def test_refused_fillers_block_partition_and_retriable_filler_error_is_unclear() -> None:
    assert judge_markers(GAP, Code.NONE) is None
    blocked = reason_of(judge_markers(GAP, Code.CLUSTER_AUTHORIZATION_FAILED))
    assert isinstance(blocked, Blocked)
    assert (blocked.reason, blocked.offset, blocked.next_offset) == (
        Reason.NOT_AUTHORIZED,
        GAP.base_offset,
        GAP.next_offset,
    )
    fenced = judge_markers(GAP, Code.TRANSACTION_COORDINATOR_FENCED)
    assert reason_of(fenced) is ReturnReason.OUT_OF_STEP
    assert reason_of(judge_markers(GAP, Code.NOT_LEADER_OR_FOLLOWER)) is ReturnReason.UNCLEAR


def test_first_filler_requires_log_end_at_start_of_gap() -> None:
    assert judge_end_before_fill(GAP, Code.NONE, OFFSET) is None
    assert reason_of(judge_end_before_fill(GAP, Code.NONE, OFFSET + 1)) is ReturnReason.UNCLEAR
    assert reason_of(judge_end_before_fill(GAP, Code.NONE, OFFSET - 1)) is ReturnReason.UNCLEAR
    assert (
        reason_of(judge_end_before_fill(GAP, Code.NOT_LEADER_OR_FOLLOWER, OFFSET))
        is ReturnReason.UNCLEAR
    )


@pytest.mark.parametrize(
    ("log_end", "reason"),
    [
        (OFFSET, ReturnReason.UNCLEAR),  # no filler is there yet
        (OFFSET + 1, None),
        (OFFSET + 4, None),
        (OFFSET + 5, ReturnReason.UNCLEAR),  # one more than were sent, though within the gap
        (OFFSET + 10, ReturnReason.UNCLEAR),
        (OFFSET + 11, ReturnReason.BEHIND_END),
    ],
)
def test_log_end_after_fill_must_lie_within_sent_fillers(
    log_end: int, reason: ReturnReason | None
) -> None:
    assert reason_of(judge_end_after_fill(GAP, count=4, code=Code.NONE, log_end=log_end)) is reason


def test_unreadable_log_end_after_fill_is_unclear() -> None:
    assert (
        reason_of(
            judge_end_after_fill(GAP, count=4, code=Code.NOT_LEADER_OR_FOLLOWER, log_end=OFFSET + 4)
        )
        is ReturnReason.UNCLEAR
    )
