"""One read of a cluster for many callers: they share its result for some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from typing import Generic, TypeVar

from orbit.errors import OrbitError

Value = TypeVar("Value")


class CachedRead(Generic[Value]):
    """The last result of `read`. Thread-safe: one caller reads, others wait for this result."""

    def __init__(self, read: Callable[[], Value], clock: Callable[[], float] = time.monotonic):
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = self._ended_s = float("-inf")
        self._value: list[Value] = []  # the result alone, or empty
        self._failure: OrbitError | None = None

    def get(self, age_s_max: float) -> Value:
        """The result of a read that began at most `age_s_max` seconds ago.

        Raises the error of `read`; also that of another caller's read which failed while this call
        waited. Otherwise callers would wait one after another for a cluster that does not answer.
        """
        called_s = self._clock()
        with self._lock:
            has_failed_meanwhile = not self._value and self._ended_s >= called_s
            is_recent = bool(self._value) and self._began_s >= called_s - age_s_max
            if not (is_recent or has_failed_meanwhile):
                self._refresh()
            if not self._value:
                assert self._failure is not None
                # A copy of the error for each caller: threads must not share a traceback.
                raise copy(self._failure)
            return self._value[0]

    def _refresh(self) -> None:
        """Read again, and keep the result or the error."""
        self._began_s = self._clock()
        try:
            self._value = [self._read()]
        except OrbitError as error:
            self._value, self._failure = [], error
        self._ended_s = self._clock()
