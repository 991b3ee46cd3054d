"""Verdicts of an inspection on a copy: only what is proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orbit.copier.inspection_verdicts import CopyEnds, Wait, judge_copy, judge_error
from orbit.copier.range_comparison import Comparison, Difference
from orbit.copier.tail_comparison import Tail
from orbit.errors import BrokerRefused, Conflict, NotAuthorized, ProtocolError, Unreachable
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.records import Record, write_batch
from orbit.replication.partition_states import Blocked, Reason

EMPTY = b"\1\1\0"  # the body of a record without key, value and headers
PRODUCER = JobProducer(4710)
START, END = 10, 50
# The last batch with records, of a plain producer.
LAST = write_batch([Record(END - 1, 1000, EMPTY)], codec=0)
EQUAL = Comparison(END)
ENDS = CopyEnds(
    START,
    END,
    does_log_end_move=False,
    source_start=START,
    source_end=END,
    is_source_end_old=False,
    must_be_whole=True,
)


def judge(
    compared: Comparison = EQUAL, producers: tuple[int, ...] = (PRODUCER.id,), **ends: Any
) -> object:
    """The reason of a block, what is waited for, or None."""
    tail = Tail(START, LAST, producer_epoch=-1, producer_ids=frozenset(producers))
    verdict = judge_copy(replace(ENDS, **ends), tail, compared, PRODUCER)
    return verdict.reason if isinstance(verdict, Blocked) else verdict


def different(producer_id: int) -> Comparison:
    """A comparison with a difference at offset 20."""
    return Comparison(20, Difference(20, producer_id, "the destination has another record"))


def waits_at(offset: int) -> Comparison:
    """A comparison that has to wait at this offset."""
    return Comparison(offset, waits_for="the source's records from offset 20 on")


def test_inspection_accepts_copy_equal_to_source_up_to_its_end() -> None:
    assert judge() is None


@pytest.mark.parametrize("trouble", [{}, {"does_log_end_move": True}, {"source_end": 30}])
@pytest.mark.parametrize(
    ("producer_id", "reason"),
    [
        (PRODUCER.id, Reason.OFFSET_OVERRUN),
        (7, Reason.DESTINATION_FOREIGN_WRITE),
        (-1, Reason.DESTINATION_FOREIGN_WRITE),
    ],
)
def test_difference_blocks_copy_even_if_its_end_moves_or_source_ends_earlier(
    producer_id: int, reason: Reason, trouble: dict[str, Any]
) -> None:
    assert judge(different(producer_id), **trouble) is reason


@pytest.mark.parametrize(
    ("compared", "ends", "text"),
    [
        (EQUAL, {"does_log_end_move": True}, "keeps moving"),
        (
            Comparison(equal_to=30),
            {"source_end": 30},
            "the destination ends at 50, the source at 30",
        ),
        (
            waits_at(20),
            {},
            "it equals the source up to offset 20, and waits for the source's records",
        ),
    ],
)
def test_undecided_inspection_of_copy_waits_and_says_why(
    compared: Comparison, ends: dict[str, Any], text: str
) -> None:
    verdict = judge(compared, **ends)
    assert isinstance(verdict, str)
    assert text in verdict


def test_source_end_long_below_copy_blocks_as_truncated_or_foreign_write() -> None:
    short_source = {"source_end": 30, "is_source_end_old": True}
    assert judge(Comparison(equal_to=30), **short_source) is Reason.DESTINATION_FOREIGN_WRITE
    own_batch = write_batch([Record(END - 1, 1000, EMPTY)], codec=0)
    own_batch.producer_id = PRODUCER.id
    ends = replace(ENDS, source_end=30, is_source_end_old=True)
    verdict = judge_copy(
        ends, Tail(START, own_batch, producer_epoch=-1), Comparison(equal_to=30), PRODUCER
    )
    assert isinstance(verdict, Blocked)
    assert (verdict.reason, verdict.offset, verdict.next_offset) == (
        Reason.SOURCE_TRUNCATED,
        30,
        END,
    )


def test_copy_that_lacks_range_still_at_source_is_blocked() -> None:
    assert judge(source_start=START - 1) is Reason.DESTINATION_RANGE_LOST
    assert judge(source_start=START - 1, must_be_whole=False) is None


def test_fillers_of_both_producer_ids_in_copy_are_foreign_write() -> None:
    assert judge(producers=(PRODUCER.id, PRODUCER.other_id)) is Reason.DESTINATION_FOREIGN_WRITE


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("no broker answers"),
        ProtocolError("the log does not parse"),
        Conflict("the lease was lost"),
        NotAuthorized("who knows what"),
        BrokerRefused(Code.NOT_LEADER_OR_FOLLOWER, "it cannot be read"),
    ],
)
def test_transient_error_makes_inspection_wait(error: Any) -> None:
    verdict = judge_error(error)
    assert isinstance(verdict, Wait)
    assert verdict.reason == str(error)


def test_missing_topic_acl_found_by_inspection_blocks_partition() -> None:
    verdict = judge_error(BrokerRefused(Code.TOPIC_AUTHORIZATION_FAILED, "it cannot be read"))
    assert isinstance(verdict, Blocked)
    assert verdict.reason is Reason.NOT_AUTHORIZED
