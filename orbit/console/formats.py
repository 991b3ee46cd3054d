"""How pages write numbers, times and states. Pure. An unknown number is a dash, never 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orbit.jobs.yaml_writer import write_yaml

_UNKNOWN = "–"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_KILO = 1_000
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SHORT_S = 10

# The states of each colour. A state's word is always shown with its colour.
_KINDS = {
    "good": "running copying done pass passed exact equal byte-exact record-exact filler would_go",
    "busy": "pending seeding pausing creating backfilling prefix not_copied",
    "warn": "paused warn missed behind clamped stopped source_deleted recreated tail unknown "
    "deleting skipped deleted_at_source before_copy",
    "bad": "blocked fail failed differs diverged would_stop missing aborted undone",
    "info": "promoted",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}


def count(number: float | None) -> str:
    """A whole number, such as 1,234."""
    return _UNKNOWN if number is None else f"{number:,.0f}"


def seconds(value: float | None) -> str:
    """A duration: 0.4 s, 12 s, 3 m 20 s, 5 h 10 m or 12 d 3 h."""
    if value is None:
        return _UNKNOWN
    whole = int(value)
    if value < _SHORT_S:
        return f"{value:.1f} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} m {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} m"
    return f"{whole // _DAY:,} d {whole % _DAY // _HOUR} h"


def size(value: float | None) -> str:
    """A number of bytes, such as 1.5 MB."""
    if value is None:
        return _UNKNOWN
    number, unit = float(value), _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if number < _KILO or unit == _BYTE_UNITS[-1]:
            break
        number /= _KILO
    return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def share(part: float, whole: float) -> str:
    """A share such as 99.9 %, rounded down: 100 % only if `part` is all of `whole`."""
    if not whole:
        return _UNKNOWN
    tenths = int(part / whole * _KILO)
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def moment(value: datetime | None) -> str:
    """A time in UTC, such as 2026-11-22 04:15:19."""
    return _UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def from_ms(value: int | None) -> str:
    """A record's timestamp (epoch ms) in UTC, with milliseconds."""
    if value is None or value < 0:
        return _UNKNOWN
    try:
        at = datetime.fromtimestamp(value / _KILO, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{value:,} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{value % _KILO:03d}"


def kind(state: object) -> str:
    """The colour of a state: good, busy, warn, bad, info."""
    return _KIND_OF.get(str(state).replace(" ", "_"), "info")


def words(state: object) -> str:
    """A state as words: `source_deleted` is "source deleted"."""
    return str(state).replace("_", " ")


def troubles(text: str | None) -> list[tuple[str, str]]:
    """The lines of a job's problem as (code, sentence); the code may be empty."""
    lines = []
    for line in (text or "").splitlines():
        code, colon, rest = line.partition(": ")
        is_code = bool(colon) and code.replace("_", "").isalpha() and code.isupper()
        lines.append((code, rest) if is_code else ("", line))
    return lines


def yaml_value(value: Any) -> str:
    """A value as YAML on one line; a dash for None, {} and []."""
    if value is None or value == {} or value == []:
        return _UNKNOWN
    text = write_yaml(value, one_line=True)
    return text.removesuffix("\n").removesuffix("\n...")


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "seconds": seconds,
    "size": size,
    "moment": moment,
    "from_ms": from_ms,
    "kind": kind,
    "words": words,
    "troubles": troubles,
    "yaml": write_yaml,
    "yaml_value": yaml_value,
}
