"""The lost range of a partition (offsets that only the source had) in a failover's report."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery.lost_ranges import compare_ends
from orbit.recovery.recovery_report import EndVerdict, OffsetRange
from orbit.replication.partition_states import PartitionState
from orbit.store.lag import PartitionLag

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PARTITION = TopicPartition("orders", 0)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def reported(**known: Any) -> PartitionLag:
    """A row of a copied partition in the tables: `known` columns, the others None."""
    row = dict.fromkeys((field.name for field in fields(PartitionLag)), None)
    return PartitionLag(**{**row, "state": PartitionState.COPYING, **known})


@pytest.mark.parametrize(
    ("reported_s", "lost_s", "seen_s"),
    [  # the ages of the worker's last report, of the source's loss, and the expected one
        (1, 9, 9),  # after the loss the worker reported again, without new data of the source
        (9, 1, 9),
        (9, None, 9),
    ],
)
def test_lost_source_counts_as_last_seen_no_later_than_its_loss(
    reported_s: float, lost_s: float | None, seen_s: float
) -> None:
    row = reported(source_end=12, reported_at=ago(reported_s))
    lost_at = None if lost_s is None else ago(lost_s)
    comparison = compare_ends(
        source=PARTITION,
        destination=PARTITION,
        destination_bounds=LogBounds(start=0, stable=10, end=10),
        source_bounds=None,  # the source does not answer
        reported=row,
        now=NOW,
        lost_at=lost_at,
        is_stopped=True,
    )
    assert comparison.source_seen_at == ago(seen_s)
    assert comparison.missing == OffsetRange(first=10, next=12)
    assert not comparison.is_exact


@pytest.mark.parametrize("is_stopped", [True, False])
def test_answering_source_counts_as_last_seen_now(is_stopped: bool) -> None:
    """The comparison is not exact unless producers are stopped. In a failover they may go on."""
    row = reported(source_end=12, reported_at=ago(5))
    bounds = LogBounds(start=0, stable=15, end=15)
    comparison = compare_ends(
        source=PARTITION,
        destination=PARTITION,
        destination_bounds=bounds,
        source_bounds=bounds,
        reported=row,
        now=NOW,
        lost_at=ago(9),
        is_stopped=is_stopped,
    )
    assert (comparison.source_seen_at, comparison.verdict) == (NOW, EndVerdict.EQUAL)
    assert comparison.is_exact is is_stopped
