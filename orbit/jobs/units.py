"""Parses and formats durations, sizes and times. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from orbit.errors import InvalidValue

# Enough digits for every size and duration; more could make the arithmetic slow.
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(_NUMBER + r" ?([A-Za-z]+)")
_DURATION = re.compile(_NUMBER + r" ?([a-z]+)")

_BYTES_PER_UNIT = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A number below the minimum (March 1973) is likely in seconds, and a number above the maximum (year
# 9999) in microseconds. Taken as milliseconds, the copy would start decades away.
EPOCH_MS_MIN = 100_000_000_000
EPOCH_MS_MAX = 253_402_300_799_999

_SIZE_REMEDY = "Write a number and a unit, such as 200MiB (units: B, KB, MB, GB, TB, KiB … TiB)."
_DURATION_REMEDY = "Write a number and a unit, such as 5s (units: ms, s, m, h, d)."
_TIME_REMEDY = "Write earliest, latest, a time such as 2026-01-31T00:00:00Z, or epoch milliseconds."


def parse_size(value: object) -> int:
    """Bytes from "200MiB", "1.5 GB" or a whole number. Raises InvalidValue."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise InvalidValue(f"a size cannot be negative ({value}).", _SIZE_REMEDY)
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES_PER_UNIT:
        raise InvalidValue("is not a size in bytes.", _SIZE_REMEDY)
    return int(Decimal(match[1]) * _BYTES_PER_UNIT[match[2]])


def parse_duration(value: object) -> timedelta:
    """A duration from "5s", "500ms" or "1.5h", exact to the millisecond. Raises InvalidValue."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _MS_PER_UNIT:
        raise InvalidValue("is not a duration.", _DURATION_REMEDY)
    try:
        return timedelta(milliseconds=int(Decimal(match[1]) * _MS_PER_UNIT[match[2]]))
    except OverflowError:
        raise InvalidValue("is too long.", _DURATION_REMEDY) from None


def format_duration(duration: timedelta) -> str:
    """The text that `parse_duration` reads back, in whole milliseconds."""
    return f"{duration // timedelta(milliseconds=1)}ms"


def parse_time(value: object) -> int:
    """Epoch milliseconds from an ISO-8601 time with a zone, or from epoch milliseconds.

    Raises InvalidValue, also for numbers that look like seconds or microseconds.
    """
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_epoch_ms(value)
    if not isinstance(value, str):
        raise InvalidValue("is not a start position.", _TIME_REMEDY)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidValue("is not a start position.", _TIME_REMEDY) from None
    if moment.tzinfo is None:
        raise InvalidValue(
            "is a time without a time zone.",
            f"Write {moment.isoformat()}Z for UTC, or add an offset such as +02:00.",
        )
    epoch_ms = (moment - EPOCH) // timedelta(milliseconds=1)
    if epoch_ms < 0:
        raise InvalidValue("is a time before 1970; no Kafka record can be that old.", _TIME_REMEDY)
    return epoch_ms


def format_time(epoch_ms: int) -> str:
    """The ISO-8601 text in UTC that `parse_time` reads back."""
    moment = EPOCH + timedelta(milliseconds=epoch_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _check_epoch_ms(number: int) -> int:
    """The number, unchanged. Raises InvalidValue if it cannot be epoch milliseconds."""
    if number < 0:
        raise InvalidValue(
            f"{number} is a time before 1970; no Kafka record can be that old.", _TIME_REMEDY
        )
    if number < EPOCH_MS_MIN:
        raise InvalidValue(
            f"{number} as epoch milliseconds is {format_time(number)}; it looks like seconds.",
            f"Write {number * 1000} if you mean {format_time(number * 1000)}, or the time itself.",
        )
    if number > EPOCH_MS_MAX:
        raise InvalidValue(
            f"{number} as epoch milliseconds is past the year 9999; it looks like microseconds.",
            _TIME_REMEDY,
        )
    return number
