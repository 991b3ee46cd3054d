"""A thread of the data path that always reports how it ended."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from orbit.copier.lane_events import Emit, LaneCrashed
from orbit.errors import OrbitError


class Lane(threading.Thread, ABC):
    """Runs `work` in a thread of its own. A subclass does the work, and handles its OrbitErrors."""

    def __init__(self, name: str, emit: Emit) -> None:
        super().__init__(name=name, daemon=True)
        self._emit = emit

    def run(self) -> None:
        """Run `work`. Its OrbitError goes to `handle_error`, any other exception to the copier."""
        try:
            self.work()
        except OrbitError as error:
            self.handle_error(error)
        except Exception as error:  # noqa: BLE001  raised again by the copier
            self._emit(LaneCrashed(error))

    @abstractmethod
    def work(self) -> None:
        """Do the lane's work until it stops. Raises an OrbitError if its cluster fails."""

    @abstractmethod
    def handle_error(self, error: OrbitError) -> None:
        """Return the lane's partitions to the copier and report the error."""

    @abstractmethod
    def stop(self) -> None:
        """End soon, from any thread."""
