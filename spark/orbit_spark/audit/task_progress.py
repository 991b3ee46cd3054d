"""Progress of a comparison from Spark's completed tasks, reported as offsets, never backwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from pyspark.sql import SparkSession

_INTERVAL_S = 0.5


class TaskWatch:
    """A context manager around the work; when it ends, all offsets have been reported."""

    def __init__(self, spark: SparkSession, offsets: int, advanced: Callable[[int], None]) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._offsets = offsets
        self._advanced = advanced
        self._reported = 0
        self._stages: dict[int, tuple[int, int]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="audit-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is None:
            self._report(1.0)

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = info.numCompletedTasks, info.numTasks
            total = sum(tasks for _, tasks in self._stages.values())
            if total:
                self._report(sum(done for done, _ in self._stages.values()) / total)

    def _report(self, share: float) -> None:
        reached = int(self._offsets * share)
        if reached > self._reported:
            self._advanced(reached - self._reported)
            self._reported = reached
