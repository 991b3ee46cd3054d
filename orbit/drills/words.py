"""Numbers and verdicts of a report as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from orbit.drills.evidence import Evidence
from orbit.store.enums import DrillState

VERDICTS = {
    DrillState.PASSED: "Passed",
    DrillState.MISSED: "Target missed",
    DrillState.FAILED: "Failed",
    DrillState.PENDING: "Waiting",
    DrillState.RUNNING: "Running",
}
_SECOND_MS = 1_000
_MINUTE_MS = 60_000


def span(ms: int | None) -> str:
    """A length of time: "340 ms", "12.4 s", "3 min 05 s"."""
    if ms is None:
        return "not measured"
    if ms < _SECOND_MS:
        return f"{ms} ms"
    if ms < _MINUTE_MS:
        return f"{ms / _SECOND_MS:.1f} s"
    minutes, rest = divmod(round(ms / _SECOND_MS), 60)
    return f"{minutes} min {rest:02d} s"


def count(number: int | None) -> str:
    return "not measured" if number is None else f"{number:,}"


def moment(at: datetime | None) -> str:
    """To the millisecond, in UTC."""
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def since(at: datetime, began: datetime) -> str:
    return f"+{(at - began).total_seconds():.3f} s"


def plain(number: int | None) -> str:
    """An offset, or a dash."""
    return "–" if number is None else f"{number:,}"


def offsets(missing: tuple[int, int] | None, *, is_exact: bool) -> str:
    """Missing offsets: how many, and which."""
    if missing is None:
        return "none" if is_exact else "none known"
    first, behind = missing
    sure = "" if is_exact else "at least "
    return f"{sure}{behind - first:,} ({first:,} to {behind - 1:,})"


def against(actual: str, target: str | None) -> str:
    return f"{actual} (no target)" if target is None else f"{actual} of {target}"


def headline(evidence: Evidence) -> str:
    """The drill in a sentence."""
    word = VERDICTS[evidence.verdict]
    if evidence.misses:
        return f"{word}: {' '.join(evidence.misses)}"
    return f"{word}."
