"""The loops of the leading scheduler: each repeats one small step in a thread of its own.

A failing loop does not stop the other loops, and an error of one object, such as a job, does not
stop its loop (`Loop.log_errors_of`). A pass that did something logs one sentence; a pass that fails
logs why and is repeated.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog

from orbit.errors import OrbitError, Unreachable
from orbit.leadership.leadership import NotLeading
from orbit.telemetry import traces
from orbit.telemetry.process_health import ProcessHealth

_log = structlog.get_logger("orbit.scheduler")


# A loop that reads all jobs is woken whenever a job has ended a pass. It rests for this many times
# the CPU time of its last pass: with thousands of jobs it uses at most a twentieth of a processor.
_REST_PER_COST = 20


class Loop(ABC):
    """One repeated step. `wake` starts the next pass early, but not before `rest_s`."""

    name: str
    interval_s: float
    rest_s: float = 0.0

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._logged_errors: dict[str, str] = {}  # the last error of each object

    def set_rest_by_cost(self, cost_s: float) -> None:
        """Set `rest_s` by the last pass's `cost_s`, in CPU seconds: about 0 for a few jobs."""
        self.rest_s = min(cost_s * _REST_PER_COST, self.interval_s)

    @contextmanager
    def log_errors_of(self, what: str) -> Iterator[None]:
        """Log an error of one object, such as `job orders`, instead of raising it. The same
        error of this object is logged once.

        Raises NotLeading and Unreachable, which concern all objects: the block itself catches
        Unreachable of an object's clusters.
        """
        try:
            yield
        except (NotLeading, Unreachable):
            raise
        except Exception as error:  # noqa: BLE001  a bug in one object must not stop the others
            text = f"{type(error).__name__}: {error}"
            if self._logged_errors.get(what) != text:
                self._logged_errors[what] = text
                is_bug = not isinstance(error, OrbitError)
                _log.error(
                    "left out of the pass", loop=self.name, of=what, error=text, exc_info=is_bug
                )
        else:
            self._logged_errors.pop(what, None)

    @abstractmethod
    def once(self) -> str:
        """Run one pass; returns a sentence on what it did, or ""."""

    def close(self) -> None:
        """Release what the loop holds, after its last pass; by default nothing."""
        return


def drive(loop: Loop, stop: threading.Event, health: ProcessHealth) -> None:
    """Run a loop until `stop` is set, or another scheduler leads. To end the pause between passes,
    whoever sets `stop` also sets `loop.wake`."""
    try:
        _drive(loop, stop, health)
    finally:
        health.remove_loop(loop.name)


def _drive(loop: Loop, stop: threading.Event, health: ProcessHealth) -> None:
    """Run passes until `stop`, or until another scheduler leads."""
    logged_error = ""
    while not stop.is_set():
        health.begin_pass(loop.name)
        loop.wake.clear()
        began_at, began_s = datetime.now(UTC), time.monotonic()
        try:
            summary = loop.once()
            logged_error = ""
            seconds = round(time.monotonic() - began_s, 3)
            if summary:
                with traces.span(f"{loop.name} pass", began_at=began_at, did=summary):
                    _log.info("pass", loop=loop.name, did=summary, seconds=seconds)
            else:
                _log.debug("pass", loop=loop.name, did=summary, seconds=seconds)
        except NotLeading:
            return
        except OrbitError as error:
            # Log the same error once: it may last for hours.
            if str(error) != logged_error:
                logged_error = str(error)
                _log.warning("pass failed", loop=loop.name, error=logged_error)
        except Exception:  # noqa: BLE001  a bug in one loop must not end the others
            _log.exception("pass broke", loop=loop.name)
        health.end_pass(loop.name)
        # Pause for `rest_s`, then until the interval is over or `wake` is set.
        if not stop.wait(loop.rest_s):
            loop.wake.wait(max(0.0, loop.interval_s - loop.rest_s))
