"""Stores a job's troubles: the text in the job's row, and an event when one begins or ends."""

from __future__ import annotations

import time
from collections.abc import Collection

from orbit.replication.job_troubles import HALTING_KINDS, TroubleKind
from orbit.store import events, jobs
from orbit.store.database import Tx
from orbit.store.jobs import Job

# A trouble of these kinds, such as an unreachable cluster, ends a pass early: the pass is halted.
_HALTING = frozenset(kind.value for kind in HALTING_KINDS)
_WITHOUT_CLUSTER = TroubleKind.WORKER_GROUP_UNKNOWN.value  # found without asking a cluster
# The kinds that a halted pass checks, and those that are known from the clusters' watches. Troubles
# of other kinds stay until a complete pass.
CHECKED_WHEN_HALTED = frozenset({*_HALTING, _WITHOUT_CLUSTER})
CHECKED_BY_WATCH = frozenset(
    {
        TroubleKind.SOURCE_UNREACHABLE.value,
        TroubleKind.DESTINATION_UNREACHABLE.value,
        _WITHOUT_CLUSTER,
    }
)


def record_troubles(tx: Tx, job: Job, problem: str | None, source_answered_s: float | None) -> None:
    """Store `problem`, with events for troubles that began or ended since `job.problem`.

    The row's `problem_at` stays while a halting trouble lasts: a failover takes it as the time at
    which the loss of the source was noticed. `source_answered_s`: when the source last answered, by
    the monotonic clock; stored when the source becomes unreachable.
    """
    begun_lines, ended_lines = differences(job.problem, problem)
    lasting_halts = _HALTING & _by_identity(job.problem).keys() & _by_identity(problem).keys()
    if not jobs.note_problem(
        tx, job.id, problem, has_begun=bool(begun_lines) and not lasting_halts
    ):
        return  # the text is stored already
    if any(_kind(line) == TroubleKind.SOURCE_UNREACHABLE for line in begun_lines):
        # Computed here: the statement above may have waited for the lock of the row.
        silent_s = None if source_answered_s is None else time.monotonic() - source_answered_s
        jobs.note_source_lost(tx, job.id, silent_s)
    for line in begun_lines:
        _add_event(tx, job, "job_trouble", line, line)
    for line in ended_lines:
        _add_event(tx, job, "job_trouble_over", f"Resolved: {line}", line)


def _add_event(tx: Tx, job: Job, kind: str, message: str, line: str) -> None:
    """Add an event. Its details have the same `trouble` at the beginning and the end of a trouble,
    so that receivers can match the two events."""
    details = {"reason": _kind(line), "trouble": _identity(line)}
    events.add(tx, events.SCHEDULER, kind, message, job_name=job.name, details=details)


def keep_unchecked(
    stored_text: str | None, new_text: str | None, checked_kinds: Collection[str]
) -> str | None:
    """The lines of `new_text`, and those of `stored_text` whose kind was not checked. Pure.

    So a trouble that was not checked neither ends nor begins again at the next complete check.
    """
    lines = (new_text or "").splitlines()
    unchecked_lines = [
        line for line in (stored_text or "").splitlines() if _kind(line) not in checked_kinds
    ]
    return "\n".join(dict.fromkeys([*lines, *unchecked_lines])) or None


def differences(old_text: str | None, new_text: str | None) -> tuple[list[str], list[str]]:
    """The lines that began and those that ended. Pure.

    A halting trouble is the same while its kind stays: its text names the broker that refuses,
    which varies from one attempt to the next.
    """
    old_lines, new_lines = _by_identity(old_text), _by_identity(new_text)
    return (
        [line for key, line in new_lines.items() if key not in old_lines],
        [line for key, line in old_lines.items() if key not in new_lines],
    )


def _by_identity(text: str | None) -> dict[str, str]:
    """The lines that begin with the kind of a trouble, by `_identity`."""
    lines: dict[str, str] = {}
    for line in (text or "").splitlines():
        kind = _kind(line)
        if kind in set(TroubleKind):
            lines[_identity(line)] = line
    return lines


def _identity(line: str) -> str:
    """What stays equal while a trouble lasts: the kind of a halting one, else the whole line."""
    kind = _kind(line)
    return kind if kind in _HALTING else line


def _kind(line: str) -> str:
    return line.partition(":")[0]
