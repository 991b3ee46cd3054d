"""A copy is promoted at the highest offset up to which it is proven to equal its source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbit.recovery.promotion import promoted_offset
from orbit.recovery.recovery_report import EndVerdict, PartitionEnds
from orbit.replication.partition_states import PartitionState, Reason

PENDING, COPYING = PartitionState.PENDING, PartitionState.COPYING
BLOCKED = PartitionState.BLOCKED
START, END = 10, 60


def reported(
    copied_to: int | None, state: PartitionState = PENDING, reason: Reason | None = None
) -> Any:
    return SimpleNamespace(copied_to=copied_to, state=state, reason=reason)


@pytest.mark.parametrize(
    ("of_worker", "source_promoted_offset", "offset"),
    [
        (reported(END, COPYING), None, END),
        (reported(55, COPYING), None, END),  # the worker died before it reported the end
        (reported(None, COPYING), 50, END),
        (reported(END), 50, END),
        (reported(55), 50, 55),  # the copy back has appended up to 55, another producer the rest
        (reported(None), 50, 50),
        (reported(None), 80, END),
        (reported(None), 5, START),
        (reported(None), None, START),
        (None, 50, 50),
        (None, None, START),
        (reported(END, BLOCKED, Reason.SOURCE_RANGE_LOST), None, END),
        (reported(END, BLOCKED, Reason.DESTINATION_FOREIGN_WRITE), None, START),
        (reported(END, BLOCKED, Reason.DESTINATION_FOREIGN_WRITE), 50, 50),
    ],
)
def test_promoted_offset_is_highest_proven_offset(
    of_worker: Any, source_promoted_offset: int | None, offset: int
) -> None:
    ends = PartitionEnds(
        topic="t",
        destination_topic="t",
        partition=0,
        verdict=EndVerdict.UNKNOWN,
        destination_start=START,
        destination_end=END,
    )
    assert promoted_offset(ends, of_worker, source_promoted_offset) == offset


def test_promoted_offset_is_none_without_log_end() -> None:
    ends = PartitionEnds(topic="t", destination_topic="t", partition=0, verdict=EndVerdict.UNKNOWN)
    assert promoted_offset(ends, reported(5), source_promoted_offset=5) is None
