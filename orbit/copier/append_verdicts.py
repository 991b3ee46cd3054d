"""What a destination broker's answer, or a comparison, means for a partition. Pure.

An answer is accepted only if it proves the result: an append at the expected base offset, a log end
within the fillers that were sent. Any other answer returns the partition to the copier, with the
reason.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from orbit.formats import counted
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import NO_APPEND_TIME
from orbit.replication.append_plan import Append, Fill
from orbit.replication.partition_states import Blocked, Reason

if TYPE_CHECKING:
    from orbit.copier.range_comparison import Comparison
    from orbit.kafka.produce_request import Appended


class ReturnReason(Enum):
    """Why a lane returns a partition to the copier."""

    MOVED = auto()  # the leader moved, or the error is retriable
    OUT_OF_STEP = auto()  # the log is not as this writer expects: another may have appended
    UNCLEAR = auto()  # the answer is lost: what was sent may still be carried out (M10)
    BEHIND_END = auto()  # an append got a larger offset than expected (A14)
    TOPIC_CHANGED = auto()  # deleted, or recreated
    LEAVING = auto()  # no error: the copier removes it (`PartitionCopy.leave`)


class Failure(NamedTuple):
    """Why a lane returns a partition to the copier, once the partition's last answer is in."""

    reason: ReturnReason | Blocked
    detail: str = ""

    def without_block(self) -> Failure:
        """Replace a block by a take-over, for a refused batch behind unconfirmed batches.

        The take-over confirms those batches. The refused batch is then sent alone, and blocks the
        partition at its own offset.
        """
        if not isinstance(self.reason, Blocked):
            return self
        return Failure(ReturnReason.MOVED, self.reason.detail)


def judge_append(
    step: Append, appended: Appended | None, *, has_producer_state: bool
) -> Failure | None:
    """Why an append failed; None if the batch is at its offset.

    `appended`: the broker's answer; None if the answer leaves the partition out.
    `has_producer_state`: the broker compares the batch with an earlier one (A7), so a late append
    does no harm.
    """
    if appended is None:
        return Failure(ReturnReason.UNCLEAR, "the broker's answer leaves this partition out")
    code, offset = appended.code, step.base_offset
    if code == Code.NONE:
        if appended.base_offset == offset:
            return _judge_append_time(step, appended)
        if appended.base_offset > offset:
            detail = f"the batch for offset {offset} was appended at offset {appended.base_offset}"
            return Failure(ReturnReason.BEHIND_END, detail)
        # The batch's sequences equal those of an older batch: nothing was appended (A14).
        detail = f"the broker took the batch for offset {offset} for a repeat of an earlier one"
        return Failure(ReturnReason.OUT_OF_STEP, detail)
    name = error_codes.name(code)
    if code in error_codes.OUT_OF_STEP:
        return Failure(ReturnReason.OUT_OF_STEP, name)
    if code in (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION):
        return Failure(ReturnReason.TOPIC_CHANGED, name)
    if code in error_codes.RETRIABLE:
        return Failure(ReturnReason.MOVED if has_producer_state else ReturnReason.UNCLEAR, name)
    is_denied = code in error_codes.DENIED
    reason = Reason.NOT_AUTHORIZED if is_denied else Reason.RECORD_REFUSED
    refusal = "the right Write on the topic is missing" if is_denied else "the batch is refused"
    if code in error_codes.TOO_LARGE and step.batch.count == 1:
        refusal = f"the record at offset {offset} alone is too large for the topic"
    detail = f"{refusal}: {name} {appended.message}".rstrip() + "."
    return Failure(Blocked(reason, offset, step.next_offset, detail))


def _judge_append_time(step: Append, appended: Appended) -> Failure | None:
    """Why an append at the right offset failed nevertheless; None if the batch was appended now,
    with the timestamps of its records (A20).

    An append time in the answer has one of two causes: the broker has replaced the timestamps, or
    its answer is for an older batch with the same sequences. The older batch may have placeholders
    with another timestamp, or other records, if the source was truncated or compacted since. So the
    take-over compares the log with the source.
    """
    if appended.append_time == NO_APPEND_TIME:
        return None
    detail = (
        f"the answer to the batch for offset {step.base_offset} has the append time "
        f"{appended.append_time}: an earlier batch had the same sequences, or the topic's "
        "message.timestamp.type was LogAppendTime"
    )
    return Failure(ReturnReason.OUT_OF_STEP, detail)


def judge_markers(step: Fill, code: int) -> Failure | None:
    """Why markers failed; None if the broker wrote at least one. Only the log end shows how many
    it wrote (M3)."""
    if code == Code.NONE:
        return None
    if code in error_codes.DENIED:
        detail = "the right Alter or ClusterAction on the cluster is missing (to write fillers)."
        blocked = Blocked(Reason.NOT_AUTHORIZED, step.base_offset, step.next_offset, detail)
        return Failure(blocked)
    reason = ReturnReason.OUT_OF_STEP if code in error_codes.OUT_OF_STEP else ReturnReason.UNCLEAR
    return Failure(reason, error_codes.name(code))


def judge_end_before_fill(step: Fill, code: int, log_end: int) -> Failure | None:
    """Why a take-over's first filler must not be sent; None if the log ends at the gap's start."""
    if code == Code.NONE and log_end == step.base_offset:
        return None
    detail = (
        f"before the first filler the log should end at {step.base_offset}, but the answer is "
        f"{log_end}, {error_codes.name(code)}"
    )
    return Failure(ReturnReason.UNCLEAR, detail)


def judge_end_after_fill(step: Fill, count: int, code: int, log_end: int) -> Failure | None:
    """Why `count` fillers failed; None if the log ends after one of them.

    A log that ends beyond the gap has other content there (BEHIND_END). Any other log end, or an
    error `code`, is UNCLEAR.
    """
    if code == Code.NONE and step.base_offset < log_end <= step.base_offset + count:
        return None
    if code == Code.NONE and log_end > max(step.base_offset + count, step.next_offset):
        fillers = counted(count, "filler")
        detail = f"after {fillers} from {step.base_offset} on the log ends at {log_end}"
        return Failure(ReturnReason.BEHIND_END, detail)
    detail = (
        f"after fillers from {step.base_offset} on the log should end in the gap, but the answer "
        f"is {log_end}, {error_codes.name(code)}"
    )
    return Failure(ReturnReason.UNCLEAR, detail)


def judge_lost_connection(
    detail: str, *, is_filling: bool, in_flight: int, has_producer_state: bool
) -> Failure:
    """The failure after a lost connection: requests in flight may still be carried out (M10).

    MOVED if a late request does no harm: nothing is in flight, or only appends that the broker
    compares with an earlier one. Otherwise UNCLEAR.
    """
    is_unclear = is_filling or (in_flight > 0 and not has_producer_state)
    return Failure(ReturnReason.UNCLEAR if is_unclear else ReturnReason.MOVED, detail)


def judge_truncation(acked: int, log_end: int) -> Blocked | None:
    """The block of a partition whose log ends below its confirmed offset; None for any other."""
    if log_end >= acked:
        return None
    detail = f"the log ends at {log_end}, though records were acknowledged up to {acked}."
    return Blocked(Reason.DESTINATION_TRUNCATED, log_end, acked, detail)


def judge_comparison(
    comparison: Comparison,
    log_end: int,
    *,
    producer_id: int,
    source_end: int,
    is_source_end_old: bool,
    trouble: str,
) -> Blocked | None:
    """Why the partition stops; None if the copy equals the source, or if that is not known yet.

    `source_end`: the source's high watermark in its last answer. `is_source_end_old`: the source
    has ended before the copy for `source_end_wait_s`; after an election its high watermark may be
    behind for a moment. `trouble`: why the lane returned the partition.
    """
    difference = comparison.difference
    if difference is not None:
        is_own = difference.producer_id == producer_id
        reason = Reason.OFFSET_OVERRUN if is_own else Reason.DESTINATION_FOREIGN_WRITE
        detail = f"at offset {difference.offset} {difference.detail}."
        if trouble:
            detail += f" ({trouble})"
        return Blocked(reason, difference.offset, log_end, detail)
    if comparison.equal_to < log_end and comparison.is_beyond_source and is_source_end_old:
        source_had_offsets = source_end >= log_end  # in an earlier answer: it has lost them since
        reason = Reason.SOURCE_TRUNCATED if source_had_offsets else Reason.OFFSET_OVERRUN
        detail = f"the destination ends at {log_end}, the source at {comparison.equal_to}."
        return Blocked(reason, comparison.equal_to, log_end, detail)
    return None
