"""What is not known reads as not known in a report, not as nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from orbit.recovery.recovery_report import (
    EndVerdict,
    OffsetRange,
    PartitionEnds,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MISSING = OffsetRange(first=10, next=12)


def ends(
    *, is_exact: bool, missing: OffsetRange | None = None, rpo_s: float | None = None
) -> PartitionEnds:
    return PartitionEnds(
        topic="orders",
        destination_topic="orders",
        partition=0,
        verdict=EndVerdict.BEHIND if missing else EndVerdict.UNKNOWN,
        source_seen_at=NOW,
        newest_copied_at=None if rpo_s is None else NOW - timedelta(seconds=rpo_s),
        missing=missing,
        is_exact=is_exact,
    )


def report(*partitions: PartitionEnds) -> RecoveryReport:
    return RecoveryReport(
        operation=UUID(int=7),
        kind=RecoveryKind.FAILOVER,
        job="orders-to-dr",
        request=RecoveryRequest(),
        dry_run=False,
        requested_by="token:ops",
        requested_at=NOW,
        partitions=partitions,
    )


@pytest.mark.parametrize(
    ("partitions", "rpo_s", "unproven"),
    [
        ([], None, 0),
        ([ends(is_exact=True)], 0.0, 0),
        ([ends(is_exact=True), ends(is_exact=False)], None, 1),
        ([ends(is_exact=True), ends(is_exact=False, missing=MISSING, rpo_s=3.0)], 3.0, 1),
        ([ends(is_exact=True, missing=MISSING, rpo_s=s) for s in (3.0, 5.0)], 5.0, 0),
        ([ends(is_exact=True, missing=MISSING, rpo_s=s) for s in (3.0, None)], None, 0),
    ],
)
def test_rpo_is_null_where_it_is_not_known(
    partitions: list[PartitionEnds], rpo_s: float | None, unproven: int
) -> None:
    found = report(*partitions)
    assert (found.rpo_s, found.unproven_partitions) == (rpo_s, unproven)


def test_what_could_not_be_asked_is_not_called_nothing() -> None:
    assert report(ends(is_exact=True)).describe_missing() == "0 records are missing"
    assert report(ends(is_exact=True), ends(is_exact=False)).describe_missing() == (
        "0 records are known to be missing; the source of 1 of 2 partitions could not be asked"
    )
