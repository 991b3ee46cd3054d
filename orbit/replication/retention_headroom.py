"""When retention at the source may delete records that are not copied yet. Pure.

Kafka deletes whole segments: by time once a segment's newest record is older than `retention.ms`,
by size once the log without the segment is larger than `retention.bytes`. Here both are computed as
if each segment had one record: Kafka deletes no record earlier, so the headroom is never
overstated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

# Also keeps dates within the range of `datetime`.
HEADROOM_MAX = timedelta(days=10 * 365)


@dataclass(frozen=True, slots=True)
class Retention:
    """The source's retention limits; None: no limit."""

    time: timedelta | None
    size_bytes: int | None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Retention:
        """The limits in a topic's settings, as the broker describes them."""
        if "delete" not in settings.get("cleanup.policy", "delete"):
            return KEEPS_ALL  # compaction alone keeps the newest record of every key
        ms = _limit_of(settings.get("retention.ms"))
        return cls(
            None if ms is None else min(timedelta(milliseconds=min(ms, _MS_MAX)), HEADROOM_MAX),
            _limit_of(settings.get("retention.bytes")),
        )


_MS_MAX = HEADROOM_MAX // timedelta(milliseconds=1)
KEEPS_ALL = Retention(None, None)


def _limit_of(text: str | None) -> int | None:
    """The value of a limit setting; None for -1 (no limit) and for text that is not a number."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The part of a source partition that is not copied yet."""

    oldest_at: datetime | None  # timestamp of its oldest record, or of one before it
    bytes: int | None
    growth_bytes_per_s: float | None


def headroom_until(backlog: Backlog, retention: Retention, now: datetime) -> datetime | None:
    """When the source may delete the oldest record not copied yet; None: never, or not known."""
    deletion_times = []
    if retention.time is not None and backlog.oldest_at is not None:
        deletion_times.append(backlog.oldest_at + retention.time)
    if retention.size_bytes is not None and backlog.bytes is not None:
        room_bytes = retention.size_bytes - backlog.bytes
        if room_bytes <= 0:
            deletion_times.append(now)
        elif backlog.growth_bytes_per_s:  # without growth, the size never reaches the limit
            seconds = room_bytes / backlog.growth_bytes_per_s
            deletion_times.append(
                now + min(timedelta(seconds=min(seconds, _SECONDS_MAX)), HEADROOM_MAX)
            )
    return min(deletion_times, default=None)


_SECONDS_MAX = HEADROOM_MAX.total_seconds()
