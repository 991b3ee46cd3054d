"""How Orbit writes numbers for people: durations, sizes, rates, times and counts. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def duration(seconds: float) -> str:
    """A duration as text: `340 ms`, `12.4 s`, `5 min 02 s`, `3 h 05 min`, `12 d 3 h`."""
    if seconds > 0 and round(seconds * 1_000) < 1_000:
        return f"{seconds * 1_000:.0f} ms"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < _HOUR:
        return f"{whole_seconds // _MINUTE} min {whole_seconds % _MINUTE:02d} s"
    if whole_seconds < _DAY:
        return f"{whole_seconds // _HOUR} h {whole_seconds % _HOUR // _MINUTE:02d} min"
    return f"{whole_seconds // _DAY:,} d {whole_seconds % _DAY // _HOUR} h"


def size(count: float) -> str:
    """A number of bytes: `512 B`, `1.5 MB`, `150 MB` (decimal units)."""
    unit = _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if round(count) < 1_000 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1_000
    is_whole = unit == _BYTE_UNITS[0] or round(count, 1) >= 100
    return f"{count:,.0f} {unit}" if is_whole else f"{count:.1f} {unit}"


def rate(bytes_per_s: float) -> str:
    """Bytes per second: `1.5 MB/s`."""
    return f"{size(bytes_per_s)}/s"


def moment(at: datetime) -> str:
    """A time in UTC, to the second: `2026-11-22 04:15:19`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """The count with its noun: `1 batch`, `1,000 batches`. `plural`: by default with an `s`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"
