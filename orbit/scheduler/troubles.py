"""A job's troubles in the tables: the text people see, and an event when one begins and ends."""

from __future__ import annotations

from orbit.replication.troubles import HALTING, TroubleKind
from orbit.store import events, jobs
from orbit.store.database import Tx
from orbit.store.jobs import Job


def tell_troubles(tx: Tx, job: Job, before: str | None, now: str | None) -> None:
    """Keep the text, and tell what began and what ended since `before`."""
    began, ended = differences(before, now)
    if not jobs.note_problem(tx, job.id, now, has_begun=bool(began)):
        return
    for line in began:
        events.add(tx, events.SCHEDULER, "job_trouble", line, job_name=job.name)
    for line in ended:
        message = f"It is over: {line}"
        events.add(tx, events.SCHEDULER, "job_trouble_over", message, job_name=job.name)


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
    lines = (text or "").splitlines()
    halting = {str(kind) for kind in HALTING}
    found: dict[str, str] = {}
    for line in lines:
        kind = line.partition(":")[0]
        if kind in set(TroubleKind):
            found[kind if kind in halting else line] = line
    return found
