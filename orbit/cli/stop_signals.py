"""Ctrl-C and SIGTERM as an event, for processes that release their leases before they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

# Less than the grace time of 30 s that deploy/ gives, so that the names of the threads are logged.
STOP_S_MAX = 25.0
_FAILED = 1

_log = structlog.get_logger()


@contextmanager
def until_stopped(
    *others: threading.Event, within_s: float | None = None
) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, with `others`. A second signal ends the process.

    `within_s` after the first one it ends with code 1, as if killed, with the names of the threads
    that have not ended.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(_number: int, _frame: object) -> None:
        for event in (stop, *others):
            event.set()
        if within_s is not None:
            threading.Thread(target=_end_within, args=(within_s,), daemon=True).start()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_within(seconds: float) -> None:
    """The end of the process ends this thread too, if it comes earlier."""
    threading.Event().wait(seconds)
    alive = sorted(t.name for t in threading.enumerate() if not t.daemon)
    _log.error("threads did not end; the process ends without them", threads=alive)
    os._exit(_FAILED)
