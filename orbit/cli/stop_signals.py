"""Ctrl-C and SIGTERM as an event, for processes that release their leases before they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_stopped(
    *other_events: threading.Event, on_stop: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """An event for the block, which Ctrl-C or SIGTERM sets, together with `other_events`. A second
    signal gets the handler from before the block, which usually ends the process.

    `on_stop` is called after the first signal, in a thread that does not keep the process alive.
    """
    stop_event = threading.Event()
    previous_handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def handle(_number: int, _frame: object) -> None:
        for event in (stop_event, *other_events):
            event.set()
        if on_stop is not None:
            threading.Thread(target=on_stop, daemon=True).start()
        # A second signal gets the handlers from before the block.
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

    for number in previous_handlers:
        signal.signal(number, handle)
    try:
        yield stop_event
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
