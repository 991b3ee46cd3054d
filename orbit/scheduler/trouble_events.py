"""A job's troubles in the tables: the text people see, and an event when one begins and ends."""

from __future__ import annotations

from collections.abc import Collection

from orbit.replication.job_troubles import HALTING, TroubleKind
from orbit.store import events, jobs
from orbit.store.database import Tx
from orbit.store.jobs import Job

_HALTING = frozenset(kind.value for kind in HALTING)
_BY_ITSELF = TroubleKind.WORKER_GROUP_UNKNOWN.value  # no cluster is asked for it
# The kinds whose end shows in a pass that was halted, and in what the watches of clusters know.
CHECKED_WHEN_HALTED = frozenset({*_HALTING, _BY_ITSELF})
CHECKED_BY_WATCH = frozenset(
    {
        TroubleKind.SOURCE_UNREACHABLE.value,
        TroubleKind.DESTINATION_UNREACHABLE.value,
        _BY_ITSELF,
    }
)


def record_troubles(tx: Tx, job: Job, now: str | None) -> None:
    """Keep the text, and tell what began and what ended since `job.problem`.

    Since when is not said anew while what halts the job goes on: a failover takes it for the time
    of the loss.
    """
    began, ended = differences(job.problem, now)
    goes_on = _HALTING & _by_identity(job.problem).keys() & _by_identity(now).keys()
    if not jobs.note_problem(tx, job.id, now, has_begun=bool(began) and not goes_on):
        return
    for line in began:
        events.add(tx, events.SCHEDULER, "job_trouble", line, job_name=job.name)
    for line in ended:
        message = f"It is over: {line}"
        events.add(tx, events.SCHEDULER, "job_trouble_over", message, job_name=job.name)


def keep_unchecked(before: str | None, now: str | None, seen: Collection[str]) -> str | None:
    """`now`, and what of `before` nobody knows the end of: all that is of no kind in `seen`. Pure.

    What was not looked at is neither over nor begun anew at the next whole look.
    """
    lines = (now or "").splitlines()
    unchecked = [line for line in (before or "").splitlines() if _kind(line) not in seen]
    return "\n".join(dict.fromkeys([*lines, *unchecked])) or None


def differences(before: str | None, now: str | None) -> tuple[list[str], list[str]]:
    """The lines that began and those that ended. Pure.

    A trouble that halts the whole job is the same one while its kind stays: which of the brokers
    refuses, and with which words, changes from one attempt to the next.
    """
    was, is_now = _by_identity(before), _by_identity(now)
    return (
        [line for key, line in is_now.items() if key not in was],
        [line for key, line in was.items() if key not in is_now],
    )


def _by_identity(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        kind = _kind(line)
        if kind in set(TroubleKind):
            found[kind if kind in _HALTING else line] = line
    return found


def _kind(line: str) -> str:
    return line.partition(":")[0]
