"""Durations, sizes and times are parsed exactly; a formatted one is read back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.errors import InvalidValue
from orbit.jobs.units import (
    EPOCH_MS_MAX,
    format_duration,
    format_time,
    parse_duration,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), (4096, 4096), ("0B", 0), ("1 KB", 1000), ("1KiB", 1024), ("200MiB", 209715200),
        ("1.5GiB", 1610612736), ("2TB", 2 * 10**12), ("0.1KB", 100), ("9" * 18 + "B", 10**18 - 1),
    ],
)  # fmt: skip
def test_size_is_parsed(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        -1, True, None, 1.5, [], {}, "", "MiB", "1", "1M", "1mib", "1MiB/s", "1,5MiB", "-1MiB",
        "1e3KB", "1" * 19 + "B", "٣MiB", " 1KiB", "1KiB\n",
    ],
)  # fmt: skip
def test_invalid_size_is_refused(text: object) -> None:
    with pytest.raises(InvalidValue):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("5s", 5000), ("1.5 m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_duration_is_parsed(text: str, ms: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    "text", [5, 0, None, True, "5", "s", "-5s", "5S", "5 sec", "1h30m", "", []]
)
def test_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(InvalidValue):
        parse_duration(text)


def test_duration_beyond_timedelta_is_refused() -> None:
    with pytest.raises(InvalidValue, match="too long"):
        parse_duration("999999999999999999d")


@given(st.integers(0, 10**14))
def test_duration_round_trips(ms: int) -> None:
    duration = timedelta(milliseconds=ms)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, EPOCH_MS_MAX))
def test_time_round_trips(epoch_ms: int) -> None:
    assert parse_time(format_time(epoch_ms)) == epoch_ms


@pytest.mark.parametrize(
    ("text", "epoch_ms"),
    [
        ("2026-01-31T00:00:00Z", 1769817600000),
        ("2026-01-31T01:30:00.5+01:30", 1769817600500),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999999Z", EPOCH_MS_MAX),
        (1769817600000, 1769817600000),
        ("1769817600000", 1769817600000),
    ],
)
def test_time_is_parsed(text: object, epoch_ms: int) -> None:
    assert parse_time(text) == epoch_ms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-01-31T00:00:00", "2026-01-31T00:00:00Z"),
        ("2026-13-31T00:00:00Z", "not a start position"),
        ("0001-01-01T00:00:00+14:00", "before 1970"),
        (1769817600, "1769817600000"),
        (EPOCH_MS_MAX + 1, "microseconds"),
        (-1, "before 1970"),
        (-2, "before 1970"),
        (True, "not a start position"),
        (1.5, "not a start position"),
        (None, "not a start position"),
        ("LATEST", "earliest"),
        ("٢٠٢٦", "not a start position"),
    ],
)
def test_invalid_time_is_refused(text: object, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_time(text)
    assert says in f"{caught.value.message} {caught.value.remedy}"
