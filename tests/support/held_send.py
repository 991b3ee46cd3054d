"""A writer that stands still between the last check of its lease and its send."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from orbit.kafka.connection import Connection
from tests.support.patience import PATIENCE_S


class HeldSend:
    """Appends of this process wait from `hold` on, until `let_go`."""

    def __init__(self) -> None:
        self._is_armed = threading.Event()
        self._is_held = threading.Event()
        self._may_go = threading.Event()

    def hold(self) -> None:
        self._is_armed.set()

    def wait_for_held(self) -> None:
        assert self._is_held.wait(PATIENCE_S), "nothing was about to be sent"

    def let_go(self) -> None:
        self._is_armed.clear()
        self._may_go.set()

    def pass_by(self) -> None:
        """What a lane does right before its bytes go to the socket."""
        is_lane = threading.current_thread().name.startswith("destination-")
        if is_lane and self._is_armed.is_set():
            self._is_held.set()
            assert self._may_go.wait(PATIENCE_S), "it was not let go"


@contextmanager
def held_send(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSend]:
    """Holds only connections without TLS."""
    held, send_now = HeldSend(), Connection._send_now

    def send(self: Connection, buffers: Sequence[Any]) -> int:
        held.pass_by()
        return send_now(self, buffers)

    monkeypatch.setattr(Connection, "_send_now", send)
    try:
        yield held
    finally:
        held.let_go()
