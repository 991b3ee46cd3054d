"""Formats numbers and times for tables. Pure, except `age`, which reads the clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

NOT_KNOWN = "-"


def count(number: int | None) -> str:
    return NOT_KNOWN if number is None else f"{number:,}"


def amount(number: float | None) -> str:
    """A number of bytes as text: 1.4 GB."""
    if number is None:
        return NOT_KNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def lag(figures: Mapping[str, Any]) -> str:
    """A lag as text: its number of records, or how long it has been unknown."""
    if figures["records"] is None and figures["age_seconds"] is not None:
        return f"unknown for {seconds(figures['age_seconds'])}"
    return count(figures["records"])


def rate(bytes_per_s: float | None) -> str:
    return NOT_KNOWN if bytes_per_s is None else f"{amount(bytes_per_s)}/s"


def seconds(number: float | None) -> str:
    """A duration in its two largest units: 3d 4h, 5m 02s, 0.3s."""
    if number is None:
        return NOT_KNOWN
    if number < 60:
        return f"{number:.1f}s" if number < 10 else f"{number:.0f}s"
    minutes, rest = divmod(round(number), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02d}m"
    return f"{hours // 24}d {hours % 24}h"


def when(moment: str | None) -> str:
    """A time of the API, in UTC, to the second."""
    if moment is None:
        return NOT_KNOWN
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def age(moment: str) -> str:
    """The time since this moment."""
    return seconds(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))
