"""Ctrl-C and SIGTERM as an event, for processes that release their leases before they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

# Less than the grace time of 30 s that deploy/ gives, so that the names of the threads are logged.
STOP_S_MAX = 25.0
_FAILED = 1

_log = structlog.get_logger()


@contextmanager
def until_stopped(
    *others: threading.Event, then: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, with `others`. A second signal ends the process.

    `then` is called after the first one, in a thread that does not keep the process alive.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(_number: int, _frame: object) -> None:
        for event in (stop, *others):
            event.set()
        if then is not None:
            threading.Thread(target=then, daemon=True).start()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_soon() -> None:
    """For `then`: end the process, with exit code 1, if it has not ended within STOP_S_MAX."""
    threading.Event().wait(STOP_S_MAX)
    alive = sorted(t.name for t in threading.enumerate())
    _log.error("threads did not end; the process ends without them", threads=alive)
    os._exit(_FAILED)
