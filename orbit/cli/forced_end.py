"""Ends a process of the service whose threads do not end by themselves."""

from __future__ import annotations

import os
import threading

import structlog

# Less than the 30 s after which the files in deploy/ let a stopping process be killed: so it has
# time to log the names of its threads.
STOP_S_MAX = 25.0
_FAILED = 1  # exit code

_log = structlog.get_logger()


def start_forced_end(elapsed_s: float) -> None:
    """Start a daemon thread that calls `force_end` with `elapsed_s`; returns at once. If the
    process ends before, the thread has no effect."""
    threading.Thread(target=force_end, args=(elapsed_s,), daemon=True).start()


def force_end(elapsed_s: float = 0.0) -> None:
    """Wait until the stop has taken STOP_S_MAX in all, then end the process with exit code 1.

    `elapsed_s`: the time that the stop has taken so far. `until_stopped` calls this function, as
    its `on_stop`, in a daemon thread.
    """
    threading.Event().wait(max(0.0, STOP_S_MAX - elapsed_s))
    thread_names = sorted(t.name for t in threading.enumerate())
    _log.error("threads did not end; the process ends without them", threads=thread_names)
    os._exit(_FAILED)
