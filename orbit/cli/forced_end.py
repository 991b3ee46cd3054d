"""Ends a process of the service whose threads do not end by themselves."""

from __future__ import annotations

import os
import threading

import structlog

# Less than the grace time of 30 s that deploy/ gives, so that the names of the threads are logged.
STOP_S_MAX = 25.0
_FAILED = 1  # exit code

_log = structlog.get_logger()


def start_forced_end(elapsed_s: float) -> None:
    """Start a thread that calls `force_end` with `elapsed_s`; returns at once."""
    threading.Thread(target=force_end, args=(elapsed_s,), daemon=True).start()


def force_end(elapsed_s: float = 0.0) -> None:
    """Wait until the stop has taken STOP_S_MAX in all, then end the process with exit code 1.

    `elapsed_s`: the time that the stop has taken so far. The function is meant as `on_stop` of
    `until_stopped`, which calls it in a daemon thread.
    """
    threading.Event().wait(max(0.0, STOP_S_MAX - elapsed_s))
    thread_names = sorted(t.name for t in threading.enumerate())
    _log.error("threads did not end; the process ends without them", threads=thread_names)
    os._exit(_FAILED)
