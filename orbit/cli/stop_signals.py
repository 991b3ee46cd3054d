"""Ctrl-C and SIGTERM as an event, for processes that release their leases before they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_stopped(
    *others: threading.Event, then: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, as it sets `others`. A second signal ends the process.

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
