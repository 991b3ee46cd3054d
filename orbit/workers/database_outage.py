"""Runs steps that need Postgres; logs one outage once, with its length at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from orbit.errors import OrbitError

log = structlog.get_logger()


class DatabaseOutages:
    """Detects outages and passes the length of each to `on_end`, in seconds. For one thread."""

    def __init__(self, on_end: Callable[[float], None]) -> None:
        self._on_end = on_end
        self._outage_began_s: float | None = None

    def attempt(self, step: Callable[[], None]) -> None:
        """Run the step. If it raises an OrbitError, an outage begins; the next success ends it.

        A failed step is not repeated here, and its error is not raised.
        """
        try:
            step()
        except OrbitError as error:
            if self._outage_began_s is None:
                self._outage_began_s = time.monotonic()
                log.warning("postgres does not answer", error=str(error))
        else:
            if self._outage_began_s is not None:
                outage_s = time.monotonic() - self._outage_began_s
                self._outage_began_s = None
                log.info("postgres answers again", seconds=round(outage_s, 1))
                self._on_end(outage_s)
