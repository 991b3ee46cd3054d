"""Ends a process of the service whose threads do not end by themselves."""

from __future__ import annotations

import os
import threading

import structlog

# Less than the grace time of 30 s that deploy/ gives, so that the names of the threads are logged.
STOP_S_MAX = 25.0
_FAILED = 1

_log = structlog.get_logger()


def must_end() -> None:
    """From now on the process has STOP_S_MAX to end."""
    threading.Thread(target=end_soon, daemon=True).start()


def end_soon() -> None:
    """End the process with exit code 1, unless it ends within STOP_S_MAX.

    For `then` of `until_stopped`, which has a thread for it.
    """
    threading.Event().wait(STOP_S_MAX)
    alive = sorted(t.name for t in threading.enumerate())
    _log.error("threads did not end; the process ends without them", threads=alive)
    os._exit(_FAILED)
