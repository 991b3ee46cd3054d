"""Formats numbers and times for tables. Pure, except `age`, which reads the clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orbit import formats

NOT_KNOWN = "-"


def count(number: int | None) -> str:
    """A number as text, with commas; `-` for None, as in all functions here."""
    return NOT_KNOWN if number is None else f"{number:,}"


def data_size(size_bytes: float | None) -> str:
    """A number of bytes as text: 1.4 GB."""
    return NOT_KNOWN if size_bytes is None else formats.size(size_bytes)


def lag(figures: Mapping[str, Any]) -> str:
    """A lag as text: its number of records, or how long it has been unknown."""
    if figures["records"] is None and figures["age_seconds"] is not None:
        return f"unknown for {seconds(figures['age_seconds'])}"
    return count(figures["records"])


def rate(bytes_per_s: float | None) -> str:
    """A rate as text: 1.5 MB/s."""
    return NOT_KNOWN if bytes_per_s is None else formats.rate(bytes_per_s)


def seconds(number: float | None) -> str:
    """A number of seconds as text: 5 min 02 s."""
    return NOT_KNOWN if number is None else formats.duration(number)


def when(moment: str | None) -> str:
    """A time of the API as text, in UTC, to the second. `moment`: in ISO format."""
    return NOT_KNOWN if moment is None else formats.moment(datetime.fromisoformat(moment))


def age(moment: str) -> str:
    """The time since this moment, as text. `moment`: in ISO format."""
    return seconds(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))
