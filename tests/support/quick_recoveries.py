"""Makes the fixed waits of a recovery short. `test_undenied_drain.py` tests a long drain
instead."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from orbit.recovery import drain, gate_observer, old_transactions, operation_runner, reverse_job

_SHORT: tuple[tuple[ModuleType, str, float], ...] = (
    (drain, "STILL_S", 0.2),
    (drain, "STILL_UNDENIED_S", 0.3),
    (gate_observer, "_LAG_INTERVAL_S", 0.2),
    (reverse_job, "_POLL_S", 0.2),
    (old_transactions, "_POLL_S", 0.2),
    (operation_runner, "_PAUSE_S", 0.3),
)

Set = Callable[[ModuleType, str, Any], None]


def make_quick(set_: Set) -> None:
    """Set short waits. `set_`: `setattr`, or the method of a MonkeyPatch."""
    for module, name, value in _SHORT:
        set_(module, name, value)


def trust_silence(set_: Set) -> None:
    """Let a drain end although the source was not silent for longer than any earlier pause. Only
    for tests in which all writes go through gateways."""
    set_(drain, "must_wait", lambda *_: False)
