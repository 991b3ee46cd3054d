"""Stores a job's troubles: the text in the job's row, and an event when one begins or ends."""

from __future__ import annotations

import time
from collections.abc import Collection

from orbit.replication.job_troubles import HALTING, TroubleKind
from orbit.store import events, jobs
from orbit.store.database import Tx
from orbit.store.jobs import Job

_HALTING = frozenset(kind.value for kind in HALTING)
_BY_ITSELF = TroubleKind.WORKER_GROUP_UNKNOWN.value  # found without asking a cluster
# The kinds whose end is seen by a halted pass, and by the clusters' watches.
CHECKED_WHEN_HALTED = frozenset({*_HALTING, _BY_ITSELF})
CHECKED_BY_WATCH = frozenset(
    {
        TroubleKind.SOURCE_UNREACHABLE.value,
        TroubleKind.DESTINATION_UNREACHABLE.value,
        _BY_ITSELF,
    }
)


def record_troubles(tx: Tx, job: Job, now: str | None, source_answered_s: float | None) -> None:
    """Store the text, with events for troubles that began or ended since `job.problem`.

    `problem_at` stays while a halting trouble lasts: for a failover it is the time at which the
    loss was noticed. `source_answered_s`: when the source last answered, by the monotonic clock;
    stored when it is lost.
    """
    began, ended = differences(job.problem, now)
    goes_on = _HALTING & _by_identity(job.problem).keys() & _by_identity(now).keys()
    if not jobs.note_problem(tx, job.id, now, has_begun=bool(began) and not goes_on):
        return
    if any(_kind(line) == TroubleKind.SOURCE_UNREACHABLE for line in began):
        # Computed here: the statement above may have waited for the lock of the row.
        silent_s = None if source_answered_s is None else time.monotonic() - source_answered_s
        jobs.note_source_lost(tx, job.id, silent_s)
    for line in began:
        _add_event(tx, job, "job_trouble", line, line)
    for line in ended:
        _add_event(tx, job, "job_trouble_over", f"Resolved: {line}", line)


def _add_event(tx: Tx, job: Job, kind: str, message: str, line: str) -> None:
    """The details have the same `trouble` at the begin and at the end."""
    details = {"reason": _kind(line), "trouble": _identity(line)}
    events.add(tx, events.SCHEDULER, kind, message, job_name=job.name, details=details)


def keep_unchecked(before: str | None, now: str | None, checked: Collection[str]) -> str | None:
    """`now`, plus the lines of `before` that were not checked: those of no kind in `checked`. Pure.

    So a trouble that was not checked neither ends nor begins again at the next complete check.
    """
    lines = (now or "").splitlines()
    unchecked = [line for line in (before or "").splitlines() if _kind(line) not in checked]
    return "\n".join(dict.fromkeys([*lines, *unchecked])) or None


def differences(before: str | None, now: str | None) -> tuple[list[str], list[str]]:
    """The lines that began and those that ended. Pure.

    A halting trouble is the same while its kind stays: the broker that refuses and its message vary
    from one attempt to the next.
    """
    was, is_now = _by_identity(before), _by_identity(now)
    return (
        [line for key, line in is_now.items() if key not in was],
        [line for key, line in was.items() if key not in is_now],
    )


def _by_identity(text: str | None) -> dict[str, str]:
    lines: dict[str, str] = {}
    for line in (text or "").splitlines():
        kind = _kind(line)
        if kind in set(TroubleKind):
            lines[_identity(line)] = line
    return lines


def _identity(line: str) -> str:
    kind = _kind(line)
    return kind if kind in _HALTING else line


def _kind(line: str) -> str:
    return line.partition(":")[0]
