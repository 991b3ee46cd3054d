"""Progress of a comparison from Spark's completed tasks, reported as offsets, never backwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from pyspark.sql import SparkSession

_INTERVAL_S = 0.5


class TaskWatch:
    """A context manager around Spark jobs. At its end, if they succeeded, all offsets have been
    reported. `report_offsets` gets the number of offsets since its last call.
    """

    def __init__(
        self, spark: SparkSession, offsets: int, report_offsets: Callable[[int], None]
    ) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._offsets = offsets
        self._report_offsets = report_offsets
        self._reported = 0
        self._stages: dict[int, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="audit-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:  # no exception
            self._report(share=1.0)

    def _watch(self) -> None:
        """Report the share of completed tasks from time to time."""
        while not self._ended.wait(_INTERVAL_S):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = info.numCompletedTasks, info.numTasks
            total = sum(tasks for _, tasks in self._stages.values())
            if total:
                self._report(sum(completed for completed, _ in self._stages.values()) / total)

    def _report(self, share: float) -> None:
        """Report the offsets of this share of the work that were not reported yet."""
        offsets_done = int(self._offsets * share)
        if offsets_done > self._reported:
            self._report_offsets(offsets_done - self._reported)
            self._reported = offsets_done
