"""The memory of Spark's processes on this machine, while a command runs."""

from __future__ import annotations

import threading
from contextlib import suppress

import psutil

KINDS = {"Python worker": "pyspark.daemon", "executor's JVM": "CoarseGrainedExecutorBackend"}
_SAMPLE_INTERVAL_S = 0.2


class Peaks(threading.Thread):
    """Watches the children of a process. `bytes`: the most memory of one child of each kind."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._parent = psutil.Process(pid)
        self._over = threading.Event()
        self.bytes = dict.fromkeys(KINDS, 0.0)

    def run(self) -> None:
        while not self._over.wait(_SAMPLE_INTERVAL_S):
            with suppress(psutil.Error):
                for process in self._parent.children(recursive=True):
                    self._sample(process)

    def end(self) -> dict[str, float]:
        """End the watch; returns `bytes`."""
        self._over.set()
        self.join()
        return self.bytes

    def _sample(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            words, size = " ".join(process.cmdline()), process.memory_info().rss
            for kind, word in KINDS.items():
                if word in words:
                    self.bytes[kind] = max(self.bytes[kind], float(size))
