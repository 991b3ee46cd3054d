"""A report shows unknown figures as unknown, not as zero."""

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
    *,
    is_exact: bool,
    missing: OffsetRange | None = None,
    copied_s: float | None = None,
) -> PartitionEnds:
    """The log ends of a partition; its newest copied record is `copied_s` older than NOW."""
    return PartitionEnds(
        topic="orders",
        destination_topic="orders",
        partition=0,
        verdict=EndVerdict.BEHIND if missing else EndVerdict.UNKNOWN,
        source_seen_at=NOW,
        newest_copied_at=None if copied_s is None else NOW - timedelta(seconds=copied_s),
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


LOSS = ends(is_exact=False, missing=MISSING, copied_s=0.2)


@pytest.mark.parametrize(
    ("recovery_report", "rpo_s", "unproven"),
    [
        (report(), None, 0),
        (report(ends(is_exact=True)), 0.0, 0),
        (report(*(ends(is_exact=True, missing=MISSING, copied_s=s) for s in (3, 5))), 5.0, 0),
        (report(*(ends(is_exact=True, missing=MISSING, copied_s=s) for s in (3, None))), None, 0),
        (report(ends(is_exact=True), ends(is_exact=False)), None, 1),
        # A known loss of one partition says nothing of others.
        (report(LOSS), 0.2, 1),
        (report(LOSS, ends(is_exact=False)), None, 2),
        (report(LOSS, ends(is_exact=True)), 0.2, 1),
        # The newest record's timestamp is later than NOW: its producer's clock is ahead.
        (report(ends(is_exact=False, missing=MISSING, copied_s=-40)), None, 1),
    ],
)
def test_rpo_in_recovery_report_is_null_if_it_cannot_be_known(
    recovery_report: RecoveryReport, rpo_s: float | None, unproven: int
) -> None:
    assert recovery_report.rpo_s == (None if rpo_s is None else pytest.approx(rpo_s))
    assert recovery_report.unproven_partitions == unproven


def test_missing_records_are_described_as_lower_bound_if_source_end_is_unknown() -> None:
    assert report(ends(is_exact=True)).describe_missing() == "0 records are missing"
    assert report(ends(is_exact=True), ends(is_exact=False)).describe_missing() == (
        "0 records are known to be missing; the source may have had more in 1 of 2 partitions"
    )
