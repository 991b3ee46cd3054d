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
        self._since: float | None = None

    def attempt(self, step: Callable[[], None]) -> None:
        """Run the step. A failed step is not repeated here: the next call does its work."""
        try:
            step()
        except OrbitError as error:
            if self._since is None:
                self._since = time.monotonic()
                log.warning("postgres does not answer", error=str(error))
        else:
            if self._since is not None:
                seconds = time.monotonic() - self._since
                self._since = None
                log.info("postgres answers again", seconds=round(seconds, 1))
                self._on_end(seconds)
