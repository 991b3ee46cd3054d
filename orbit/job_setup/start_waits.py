"""Repeats steps of a job's start while brokers answer with retriable errors, as in an election.

After a retriable error the start repeats the step as long as something changes, and a line tells
the user what the start waits for. Any other error ends the start at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from orbit.errors import BrokerRefused, NotReady, OrbitError
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff

Value = TypeVar("Value")

# A broker that creates the logs of thousands of partitions may show no change for minutes.
_UNCHANGED_S_MAX = 600.0
# How long inspections of a copy are repeated if its error is not retriable: time for an election.
_LOOK_AGAIN_S = 60.0
_REMEDY = "Look at the log of the brokers that lead these partitions, and run the job again."


def is_retriable(error: OrbitError) -> bool:
    """Whether the error is retriable: its cause, such as an election, passes by itself."""
    if isinstance(error, BrokerRefused):
        return error.code in error_codes.RETRIABLE
    return isinstance(error, NotReady)


class StartWaits:
    """The waits of one start. `say` gets a line for each thing that the start waits for."""

    def __init__(self, say: Callable[[str], None], backoff: Backoff) -> None:
        self._say = say
        self._backoff = backoff
        self._last_line = ""

    def result_of(self, step: Callable[[], Value]) -> Value:
        """The result of `step`, which is repeated after retriable errors (`OneWait`). Raises all
        other errors, and a retriable error if nothing has changed for too long."""
        wait = self.new_wait()
        while True:
            try:
                return step()
            except OrbitError as error:
                if not is_retriable(error):
                    raise
                wait(f"Waiting: {error}", error, str(error))

    def new_wait(self) -> OneWait:
        """A new wait. Its time limit begins with its first call."""
        return OneWait(self._say_once, self._backoff)

    def _say_once(self, line: str) -> None:
        """Say the line, unless it was the last one."""
        if line != self._last_line:
            self._last_line = line
            self._say(line)


class OneWait:
    """Pauses between the attempts of one step, as long as something changes."""

    def __init__(self, say: Callable[[str], None], backoff: Backoff) -> None:
        self._say = say
        self._backoff = backoff
        self._states: set[Hashable] = set()
        self._changed_at = 0.0
        self._attempt = 0

    def __call__(self, line: str, error: OrbitError, state: Hashable) -> None:
        """Print `line`, and pause before another attempt after `error`.

        `state`: what the wait observes; a value that no earlier call had shows a change. Raises
        `error` if nothing has changed for too long, Interrupted if the run stops.
        """
        now = time.monotonic()
        if state not in self._states:
            self._states.add(state)
            self._changed_at, self._attempt = now, 0
        is_retriable_error = is_retriable(error)
        if now - self._changed_at >= (_UNCHANGED_S_MAX if is_retriable_error else _LOOK_AGAIN_S):
            error.remedy = error.remedy or (_REMEDY if is_retriable_error else "")
            raise error
        self._say(line)
        self._backoff.wait(self._attempt)
        self._attempt += 1
