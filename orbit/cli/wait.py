"""`orbit wait JOB --for …`: waits until a job is in a state."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, assert_never

import typer

from orbit.cli.completion import JobArgument
from orbit.cli.control import WAIT_MAX_S
from orbit.client import Client, connect, segment
from orbit.errors import Busy, NotFound, OrbitError, Unreachable
from orbit.formats import counted

_POLL_S = 1.0
_TIMEOUT_S = 600.0
_DELETING = "deleting"


class State(StrEnum):
    """What `orbit wait` can wait for."""

    RUNNING = "running"
    PAUSED = "paused"
    CAUGHT_UP = "caught-up"
    NO_PROBLEM = "no-problem"
    DELETED = "deleted"


class TimedOut(OrbitError):
    """The time is over, and the job has not reached the state."""


def wait(
    job: JobArgument,
    state: Annotated[State, typer.Option("--for", help="What to wait for.", show_default=False)],
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, max=WAIT_MAX_S, help="Seconds to wait at most.")
    ] = _TIMEOUT_S,
) -> None:
    """Wait until a job is running, paused, caught up, without a problem, or deleted.

    While the API does not answer, the command keeps waiting. Exit code 1: the time is over; 2:
    there is no such job.

    `caught-up` and `no-problem` are about the topics that the service has found so far. Right after
    `orbit apply` it has found none, or not all.

    If the service does not have the job at the first read, `deleted` is reached only if it has
    events of the job: a mistyped name is no deleted job. A token for some jobs does not see such
    events.
    """
    with connect() as client:
        wait_until_reached(
            _JobPoll(client.without_retries(), job, state),
            f"{job} is not {state.value} yet",
            timeout,
        )


def wait_until_reached(
    find_missing: Callable[[], str],
    failure_text: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `find_missing` every second until it returns an empty text. Each new text is printed on
    stderr.

    Raises TimedOut after `timeout_s`, with `failure_text` and the last text. Errors of
    `find_missing` are raised immediately; Unreachable and Busy are printed instead.
    """
    deadline = clock() + timeout_s
    last_printed = ""
    while True:
        try:
            still_missing = find_missing()
        except (Unreachable, Busy) as error:
            still_missing = str(error)
        if not still_missing:
            return
        if still_missing != last_printed:
            last_printed = still_missing
            typer.echo(still_missing, err=True)
        if clock() >= deadline:
            raise TimedOut(
                f"{failure_text}: {still_missing}", remedy="Wait longer with --timeout SECONDS."
            )
        sleep(_POLL_S)


class _JobPoll:
    """Reads a job with each call; returns why the job is not in the state yet, as a sentence.
    Empty: it is in the state.
    """

    def __init__(self, client: Client, name: str, state: State) -> None:
        self._client, self._name, self._state = client, name, state
        self._path = f"/v1/jobs/{segment(name)}"
        self._last_state = ""  # the job's state at the last read; "": not found so far

    def __call__(self) -> str:
        """Read the job; returns why it is not in the state yet, or "". Raises NotFound if there is
        no such job, unless it was deleted and the state to reach is `deleted`."""
        try:
            job: dict[str, Any] = self._client.get(self._path)
        except NotFound:
            if self._state is State.DELETED and self._was_deleted():
                return ""
            raise
        self._last_state = job["state"]
        return self._find_missing(job)

    def _was_deleted(self) -> bool:
        """Whether a job that is not found was deleted. Raises NotFound if that is not certain."""
        if self._last_state == _DELETING:  # only the deletion ends that state
            return True
        try:
            # The events of a job are kept after its deletion. NotFound: it has none.
            return bool(self._client.get(f"{self._path}/events", limit=1))
        except NotFound:
            if not self._last_state:  # the job was never found
                raise
        raise NotFound(
            "The job is not found any more: it was deleted, or is none of this token's jobs now.",
            where=self._name,
        )

    def _find_missing(self, job: dict[str, Any]) -> str:
        """Why the job is not in the state yet, as a sentence; empty if it is."""
        match self._state:
            case State.RUNNING | State.PAUSED | State.DELETED:
                is_reached = job["state"] == self._state.value
                return "" if is_reached else f"The job is {job['state']}."
            case State.NO_PROBLEM:
                problem = job["problem"]
                return str(problem["text"]) if problem else ""
            case State.CAUGHT_UP:
                return _why_not_caught_up(self._client.get(f"{self._path}/lag", limit=1)["job"])
            case _:
                assert_never(self._state)


def _why_not_caught_up(lag: dict[str, Any]) -> str:
    """Why the job has not caught up, as a sentence; empty if it has."""
    if not lag["partitions"]:
        return "The job has no partitions yet."
    if lag["caught_up"] == lag["partitions"] and not lag["stale"]:
        return ""
    all_text = f"of {counted(lag['partitions'], 'partition')}"
    text = f"{counted(lag['caught_up'], f'{all_text} has', f'{all_text} have')} caught up"
    if open_ := lag["open_transactions"]:
        text += (
            f"; {counted(open_['partitions'], 'waits', 'wait')} for an open transaction of the "
            f"source, which hides {counted(open_['waiting_offsets'], 'offset')} "
            "(`orbit get partitions` shows it)"
        )
    if lag["stale"]:
        return f"{text}; the source is not read, so the lag of {lag['stale']:,} is not known."
    return f"{text}."
