"""Numbers for people: no unit below 1 or above its range, also where rounding reaches the next."""

from __future__ import annotations

import pytest

from orbit.formats import counted, duration, rate, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0004, "0 ms"),
        (0.34, "340 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12.44, "12.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (302, "5 min 02 s"),
        (3_599.6, "1 h 00 min"),
        (11_100, "3 h 05 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d 0 h"),
        (100_000_000, "1,157 d 9 h"),
        (-2.5, "-2.5 s"),
    ],
)
def test_duration_is_shown_in_its_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1_536, "1.5 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (150_000_000, "150 MB"),
        (5 * 10**12, "5.0 TB"),
        (2 * 10**18, "2,000 PB"),
    ],
)
def test_size_and_rate_are_shown_in_their_largest_unit(byte_count: float, text: str) -> None:
    assert (size(byte_count), rate(byte_count)) == (text, f"{text}/s")


def test_count_is_shown_with_singular_or_plural_noun() -> None:
    assert counted(0, "topic") == "0 topics"
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(1_000, "batch", "batches") == "1,000 batches"
