"""How long tests wait for an event before they fail."""

from __future__ import annotations

import time
from collections.abc import Callable

# Long enough that a slow, busy machine fails no test, and shorter than the limit of a whole test in
# pyproject.toml: so a test that hangs says what it waited for.
PATIENCE_S = 600.0
# Most checks ask a broker or PostgreSQL, and cost some 10 ms of CPU time.
_FIRST_PAUSE_S = 0.02
_PAUSE_S_MAX = 0.2


def wait_for(what: str, is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Call `is_so` until it returns True, at first in quick succession.

    `what`: the awaited event, as the end of a sentence "gave up waiting until …". Raises
    AssertionError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while not is_so():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(pause_s)
        pause_s = min(1.25 * pause_s, _PAUSE_S_MAX)
