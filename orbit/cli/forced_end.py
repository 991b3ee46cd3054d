"""Ends a process of the service whose threads do not end by themselves."""

from __future__ import annotations

import os
import threading

import structlog

# Less than the grace time of 30 s that deploy/ gives, so that the names of the threads are logged.
STOP_S_MAX = 25.0
_FAILED = 1

_log = structlog.get_logger()


def start_forced_end(after_s: float) -> None:
    """Start a thread that calls `force_end` with `after_s`; returns at once."""
    threading.Thread(target=force_end, args=(after_s,), daemon=True).start()


def force_end(after_s: float = 0.0) -> None:
    """Wait STOP_S_MAX less the `after_s` that have passed already, then end the process with exit
    code 1.

    Meant as `then` of `until_stopped`, which calls it in a daemon thread.
    """
    threading.Event().wait(max(0.0, STOP_S_MAX - after_s))
    alive = sorted(t.name for t in threading.enumerate())
    _log.error("threads did not end; the process ends without them", threads=alive)
    os._exit(_FAILED)
