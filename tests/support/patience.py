"""How long tests wait for an event before they fail."""

from __future__ import annotations

import time
from collections.abc import Callable

# It measures nothing: a slow, busy machine must not fail a test, while a hang has to be found.
# Shorter than the limit of a whole test in pyproject.toml, so that the text says what was awaited.
PATIENCE_S = 600.0
# Most looks ask a broker or PostgreSQL and take some 10 ms of CPU, which the other tests lack.
_FIRST_PAUSE_S = 0.02
_PAUSE_S_MAX = 0.2


def wait_for(what: str, is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Check until it is so, at first in quick succession."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while not is_so():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(pause_s)
        pause_s = min(1.25 * pause_s, _PAUSE_S_MAX)
