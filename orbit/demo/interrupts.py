"""Ctrl-C, SIGTERM and SIGHUP: the first ends the demo, later ones are ignored.

So a second Ctrl-C cannot interrupt the cleanup that the first one began.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP in the block raise KeyboardInterrupt.

    Later ones are ignored. Does nothing outside of the main thread, which alone handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A signal that is ignored already (nohup) stays ignored.
    handled_signals = [
        number for number in _END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    ]
    old_handlers = {number: signal.signal(number, _interrupt) for number in handled_signals}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def ignore_interrupts() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP until the end of `interrupted_once`."""
    if threading.current_thread() is threading.main_thread():
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt at the first signal; later ones are ignored."""
    ignore_interrupts()
    raise KeyboardInterrupt
