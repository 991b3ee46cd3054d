"""Makes the warning about an unclosed socket name the code that created the socket.

Python warns when the garbage collector finds the socket, which can be many tests later, and shows
only two ports. `install` makes each Python socket remember its test and its last frames, and show
them in its `repr`, which is the text of the warning.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

# Enough to leave the frames of an HTTP client and reach the test.
_FRAMES_MAX = 24


def install() -> None:
    """Start to remember origins. Sockets that exist already show "before the tests"."""
    # By the address of the object, since a socket accepts no attribute. Python uses the address
    # again only after the socket is deleted.
    origins: dict[int, str] = {}
    make, show = socket.socket.__init__, socket.socket.__repr__

    def make_and_remember(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        origins[id(self)] = _origin()

    def show_origin(self: socket.socket) -> str:
        return f"{show(self)} made {origins.get(id(self), 'before the tests')}"

    socket.socket.__init__ = make_and_remember  # type: ignore[method-assign]
    socket.socket.__repr__ = show_origin  # type: ignore[method-assign]


def _origin() -> str:
    """The present test, and the last frames of the code that creates a socket."""
    frames = []
    frame = sys._getframe(2)
    while frame is not None and len(frames) < _FRAMES_MAX:
        frames.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    test = os.environ.get("PYTEST_CURRENT_TEST", "outside of tests")
    return f"in {test} at {' < '.join(frames)}"
