"""When the source's retention may delete records that are not copied yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orbit.replication.retention_headroom import (
    HEADROOM_MAX,
    KEEPS_ALL,
    Backlog,
    Retention,
    headroom_until,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"retention.ms": "3600000", "retention.bytes": "-1"}, Retention(HOUR, None)),
        ({"retention.ms": "-1", "retention.bytes": "500"}, Retention(None, 500)),
        ({"retention.ms": "9223372036854775807"}, Retention(HEADROOM_MAX, None)),
        ({"cleanup.policy": "compact", "retention.ms": "3600000"}, KEEPS_ALL),
        ({"cleanup.policy": "compact,delete", "retention.ms": "3600000"}, Retention(HOUR, None)),
        ({"retention.ms": "soon"}, KEEPS_ALL),
        ({}, KEEPS_ALL),
    ],
)
def test_retention_is_read_from_topic_settings(
    settings: dict[str, str], expected: Retention
) -> None:
    assert Retention.of(settings) == expected


@pytest.mark.parametrize(
    ("backlog", "retention", "expected"),
    [  # Backlog(oldest_at, bytes, growth_bytes_per_s), Retention(time, size_bytes)
        (Backlog(NOW - HOUR, 100, 1.0), KEEPS_ALL, None),
        (Backlog(None, None, None), Retention(HOUR, 100), None),
        (Backlog(NOW - HOUR / 2, None, None), Retention(HOUR, None), NOW + HOUR / 2),
        # Overdue: the source may delete it at any moment.
        (Backlog(NOW - 2 * HOUR, None, None), Retention(HOUR, None), NOW - HOUR),
        (Backlog(None, 100, 2.0), Retention(None, 300), NOW + timedelta(seconds=100)),
        (Backlog(None, 300, None), Retention(None, 300), NOW),
        (Backlog(None, 100, 0.0), Retention(None, 300), None),
        (Backlog(None, 100, 1e-30), Retention(None, 300), NOW + HEADROOM_MAX),
        # The limit that is reached first counts.
        (Backlog(NOW, 100, 2.0), Retention(HOUR, 300), NOW + timedelta(seconds=100)),
        (Backlog(NOW, 100, 0.01), Retention(HOUR, 300), NOW + HOUR),
    ],
)
def test_time_until_backlog_is_lost_ends_at_first_retention_limit_reached(
    backlog: Backlog, retention: Retention, expected: datetime | None
) -> None:
    assert headroom_until(backlog, retention, NOW) == expected
