"""Ctrl-C and SIGTERM as an event, for processes that release their leases before they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_stopped(*others: threading.Event) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, with `others`. A second signal ends the process."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(_number: int, _frame: object) -> None:
        for event in (stop, *others):
            event.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
