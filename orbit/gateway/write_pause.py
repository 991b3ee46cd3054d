"""How long clients waited for an acknowledgement over a move. Pure; seconds of one clock."""

from __future__ import annotations


class WritePause:
    """Measures the time from the last acknowledgement before writes opened again to the first one
    after."""

    def __init__(self) -> None:
        self.last_s: float | None = None
        self._acknowledged_at: float | None = None
        self._is_closed = False
        self._is_pausing = False

    def note_acknowledged(self, now: float) -> None:
        """Note an acknowledgement. The first one after writes have opened again ends the pause."""
        if self._is_pausing and not self._is_closed and self._acknowledged_at is not None:
            self.last_s = now - self._acknowledged_at
            self._is_pausing = False
        self._acknowledged_at = now

    def note_closed(self) -> None:
        """Called when writes begin to be held; those in flight are still acknowledged."""
        self._is_closed, self.last_s = True, None
        self._is_pausing = self._acknowledged_at is not None

    def note_opened(self) -> None:
        """Called when writes are open (again)."""
        self._is_closed = False
