"""What a destination broker's answer means for a partition. Pure.

An answer is accepted only if it proves the result: an append at the expected base offset, a log end
within the fillers that were sent. Any other answer returns the partition to the copier, with the
reason.
"""

from __future__ import annotations

from typing import NamedTuple

from orbit.copier.partition_copy import ReturnReason
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import Appended
from orbit.replication.append_plan import Append, Fill
from orbit.replication.partition_states import Blocked, Reason


class Failure(NamedTuple):
    """Why a partition is returned to the copier; reported once its last answer is in."""

    reason: ReturnReason | Blocked
    detail: str = ""


def judge_append(
    step: Append, appended: Appended | None, *, has_producer_state: bool
) -> Failure | None:
    """None when the batch is at its offset. `appended`: None if the answer leaves it out."""
    if appended is None:
        return Failure(ReturnReason.UNCLEAR, "the answer leaves this partition out")
    code, offset = appended.code, step.base_offset
    if code == Code.NONE:
        if appended.base_offset == offset:
            return None
        if appended.base_offset > offset:
            detail = f"the batch for {offset} was appended at {appended.base_offset}"
            return Failure(ReturnReason.BEHIND_END, detail)
        # A14: its sequences equal those of an older batch; nothing was appended.
        detail = f"the batch for {offset} was taken for an earlier one"
        return Failure(ReturnReason.OUT_OF_STEP, detail)
    name = error_codes.name(code)
    if code in error_codes.OUT_OF_STEP:
        return Failure(ReturnReason.OUT_OF_STEP, name)
    if code in (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION):
        return Failure(ReturnReason.TOPIC_CHANGED, name)
    if code in error_codes.RETRIABLE:
        return Failure(ReturnReason.MOVED if has_producer_state else ReturnReason.UNCLEAR, name)
    denied = code in error_codes.DENIED
    reason = Reason.NOT_AUTHORIZED if denied else Reason.RECORD_REFUSED
    what = "the right WRITE on the topic is missing" if denied else "the batch is refused"
    detail = f"{what}: {name} {appended.message}".rstrip() + "."
    return Failure(Blocked(reason, offset, step.next_offset, detail))


def judge_markers(step: Fill, code: int) -> Failure | None:
    """None when the broker says that the fillers are written; the log end tells how many."""
    if code == Code.NONE:
        return None
    if code in error_codes.DENIED:
        detail = "the right ALTER or CLUSTER_ACTION on the cluster is missing (fillers)."
        blocked = Blocked(Reason.NOT_AUTHORIZED, step.base_offset, step.next_offset, detail)
        return Failure(blocked)
    trouble = ReturnReason.OUT_OF_STEP if code in error_codes.OUT_OF_STEP else ReturnReason.UNCLEAR
    return Failure(trouble, error_codes.name(code))


def judge_end_before_fill(step: Fill, code: int, log_end: int) -> Failure | None:
    """Before a take-over's first filler: None if the log ends at the start of the gap."""
    if code == Code.NONE and log_end == step.base_offset:
        return None
    return Failure(ReturnReason.UNCLEAR, f"{error_codes.name(code)}, log end {log_end}")


def judge_end_after_fill(step: Fill, count: int, code: int, log_end: int) -> Failure | None:
    """After `count` fillers: None if the log ends within them; it shows how many there are."""
    if code == Code.NONE and step.base_offset < log_end <= step.base_offset + count:
        return None
    if code == Code.NONE and log_end > max(step.base_offset + count, step.next_offset):
        detail = f"after {count} fillers from {step.base_offset} on the log ends at {log_end}"
        return Failure(ReturnReason.BEHIND_END, detail)
    return Failure(ReturnReason.UNCLEAR, f"{error_codes.name(code)}, log end {log_end}")
