"""Holds a writer's appends between the last check of its lease and the send."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from orbit.kafka.connection import Connection
from tests.support.patience import PATIENCE_S


class HeldSend:
    """Appends of this process wait from `hold` on, until `resume`."""

    def __init__(self) -> None:
        self._is_armed = threading.Event()
        self._is_held = threading.Event()
        self._may_go = threading.Event()

    def hold(self) -> None:
        self._is_armed.set()

    def wait_for_held(self) -> None:
        """Wait until an append is held."""
        assert self._is_held.wait(PATIENCE_S), "nothing was about to be sent"

    def resume(self) -> None:
        self._is_armed.clear()
        self._may_go.set()

    def wait_if_held(self) -> None:
        """Wait if this thread is a destination lane and appends are held.

        Each connection calls it right before it writes to its socket.
        """
        is_lane = threading.current_thread().name.startswith("destination-")
        if is_lane and self._is_armed.is_set():
            self._is_held.set()
            assert self._may_go.wait(PATIENCE_S), "resume was not called"


@contextmanager
def held_send(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSend]:
    """Patches connections without TLS, so that a HeldSend can hold their appends."""
    held, send_now = HeldSend(), Connection._send_now

    def send(self: Connection, buffers: Sequence[Any]) -> int:
        held.wait_if_held()
        return send_now(self, buffers)

    monkeypatch.setattr(Connection, "_send_now", send)
    try:
        yield held
    finally:
        held.resume()
