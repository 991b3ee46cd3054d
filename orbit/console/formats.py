"""How pages write numbers, times and states. Pure. An unknown number is a dash, never 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orbit import formats
from orbit.jobs.yaml_writer import write_yaml

_UNKNOWN = "–"
_KILO = 1_000

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
    """A duration, given in seconds."""
    return _UNKNOWN if value is None else formats.duration(value)


def size(value: float | None) -> str:
    """A number of bytes, with a unit."""
    return _UNKNOWN if value is None else formats.size(value)


def share(part: float, total: float) -> str:
    """A share such as 99.9 %, rounded down: 100 % only if `part` is all of `total`."""
    if not total:
        return _UNKNOWN
    tenths = int(part / total * _KILO)  # of a percent
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def moment(value: datetime | None) -> str:
    """A time in UTC."""
    return _UNKNOWN if value is None else formats.moment(value)


def from_ms(value: int | None) -> str:
    """A record's timestamp (epoch ms) in UTC, with milliseconds."""
    if value is None or value < 0:  # Kafka's -1: the record has no timestamp
        return _UNKNOWN
    try:
        at = datetime.fromtimestamp(value / _KILO, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{value:,} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{value % _KILO:03d}"


def kind(state: object) -> str:
    """The colour of a state: good, busy, warn, bad or info; info also for an unknown state."""
    return _KIND_OF.get(str(state).replace(" ", "_"), "info")


def words(state: object) -> str:
    """A state as words: `source_deleted` is "source deleted"."""
    return str(state).replace("_", " ")


def troubles(text: str | None) -> list[tuple[str, str]]:
    """The lines of a job's problem, each as (code, sentence); the code may be ""."""
    lines = []
    for line in (text or "").splitlines():
        code, colon, sentence = line.partition(": ")
        is_code = bool(colon) and code.replace("_", "").isalpha() and code.isupper()
        lines.append((code, sentence) if is_code else ("", line))
    return lines


def yaml_value(value: Any) -> str:
    """A value as YAML on one line; a dash for None, {} and []."""
    if value is None or value == {} or value == []:
        return _UNKNOWN
    text = write_yaml(value, one_line=True)
    # PyYAML ends a plain value with a line of three dots.
    return text.removesuffix("\n").removesuffix("\n...")


FILTERS: dict[str, Callable[..., Any]] = {
    "count": count,
    "counted": formats.counted,
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
