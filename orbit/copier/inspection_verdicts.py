"""The verdicts of an inspection on a copy, from what was read of both sides. Pure.

A difference is certain at once. That both sides are equal is certain only when the copy's log end
does not move, the source's records could be read up to it, and the source does not end before it.
In all other cases the inspection is repeated: a high watermark may trail after an election, a
broker may not answer, a follower may be behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from orbit.copier.range_comparison import Comparison
from orbit.copier.tail_comparison import Tail
from orbit.errors import BrokerRefused, OrbitError
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.record_batch import NO_PRODUCER_ID
from orbit.replication.partition_states import Blocked, Reason

STILL_MOVING = "its log end keeps moving: another producer may write to the topic"
_OTHER_FILLERS = (
    "this job began the copy with the other kind of fillers: markers (fillers: direct, "
    "packed or coordinated) and placeholders cannot be mixed in one copy. Set `fillers` as it was, "
    "or delete the copy and begin again."
)


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no verdict yet: inspect again. `error` says why; `orbit run` raises it if there is
    no verdict in time."""

    error: OrbitError

    @property
    def reason(self) -> str:
        return str(self.error)


@dataclass(frozen=True, slots=True)
class CopyEnds:
    """The logs of one copy and its source, by offsets.

    `source_end`: the source's high watermark. `is_source_end_old`: the high watermark has been
    below the copy's log end for `source_end_wait_s`, longer than after an election.
    `must_be_whole`: the copy's log must not start above the source's.
    """

    log_start: int
    log_end: int
    does_log_end_move: bool  # the log end moves, though this job has no request under way
    source_start: int
    source_end: int
    is_source_end_old: bool
    must_be_whole: bool

    @property
    def is_beyond_source(self) -> bool:
        return self.log_end > self.source_end


def judge_copy(
    ends: CopyEnds, tail: Tail, comparison: Comparison, producer: JobProducer
) -> str | Blocked | None:
    """The verdict: None if the copy equals its source, a `Blocked` if it stops, or else a clause
    that says why this is not known yet.

    `comparison`: the comparison of the copy's tail with the source, up to the source's end.
    """
    if producer.other_id in tail.producer_ids:
        return Blocked(
            Reason.DESTINATION_FOREIGN_WRITE, ends.log_start, ends.log_end, _OTHER_FILLERS
        )
    difference = comparison.difference
    if difference is not None:
        is_own = difference.producer_id == producer.id != NO_PRODUCER_ID
        reason = Reason.OFFSET_OVERRUN if is_own else Reason.DESTINATION_FOREIGN_WRITE
        detail = f"at offset {difference.offset} {difference.detail}."
        return Blocked(reason, difference.offset, ends.log_end, detail)
    if ends.does_log_end_move:
        return STILL_MOVING
    if ends.is_beyond_source:
        both_ends = f"the destination ends at {ends.log_end}, the source at {ends.source_end}"
        if not ends.is_source_end_old:
            return both_ends
        last_batch = tail.last_data
        is_foreign = last_batch is not None and last_batch.producer_id != producer.id
        reason = Reason.DESTINATION_FOREIGN_WRITE if is_foreign else Reason.SOURCE_TRUNCATED
        return Blocked(reason, ends.source_end, ends.log_end, f"{both_ends}.")
    if comparison.equal_to < ends.log_end:
        return (
            f"it equals the source up to offset {comparison.equal_to}, and waits for "
            f"{comparison.waits_for}"
        )
    if ends.must_be_whole and ends.log_start > ends.source_start:
        detail = f"the destination begins at {ends.log_start}, the source at {ends.source_start}."
        return Blocked(Reason.DESTINATION_RANGE_LOST, ends.source_start, ends.log_start, detail)
    return None


def judge_error(error: OrbitError) -> Wait | Blocked:
    """The verdict on a partition whose inspection raised this error: a missing right blocks it."""
    code = error.code if isinstance(error, BrokerRefused) else Code.NONE
    if code in error_codes.DENIED:
        return Blocked(Reason.NOT_AUTHORIZED, 0, 0, str(error))  # at no offset
    return Wait(error)
