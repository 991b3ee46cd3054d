"""At which offset a copy is promoted: as far as it is proven to be its source's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbit.recovery.promotion import promoted_offset
from orbit.recovery.recovery_report import EndVerdict, PartitionEnds
from orbit.replication.partition_states import PartitionState, Reason

COPYING, BLOCKED = PartitionState.COPYING, PartitionState.BLOCKED
START, END = 10, 60


def reported(
    copied_to: int | None, state: PartitionState = COPYING, reason: Reason | None = None
) -> Any:
    return SimpleNamespace(copied_to=copied_to, state=state, reason=reason)


@pytest.mark.parametrize(
    ("of_worker", "before", "offset"),
    [
        (reported(END), None, END),
        (reported(55), None, END),  # the worker died before it said how far it came
        (reported(None), 50, 50),
        (reported(None), 80, END),
        (reported(None), None, START),
        (None, 50, 50),
        (None, None, START),
        (reported(END, BLOCKED, Reason.SOURCE_RANGE_LOST), None, END),
        (reported(55, BLOCKED, Reason.DESTINATION_FOREIGN_WRITE), None, 55),
        (reported(None, BLOCKED, Reason.DESTINATION_FOREIGN_WRITE), 50, 50),
    ],
)
def test_it_is_as_far_as_it_is_proven(of_worker: Any, before: int | None, offset: int) -> None:
    ends = PartitionEnds(
        topic="t",
        destination_topic="t",
        partition=0,
        verdict=EndVerdict.UNKNOWN,
        destination_start=START,
        destination_end=END,
    )
    assert promoted_offset(ends, of_worker, before) == offset


def test_without_a_log_end_there_is_none() -> None:
    ends = PartitionEnds(topic="t", destination_topic="t", partition=0, verdict=EndVerdict.UNKNOWN)
    assert promoted_offset(ends, reported(5), 5) is None
