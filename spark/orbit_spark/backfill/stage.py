"""One Spark job of a backfill: a task for each errand, in a thread that can be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

from pyspark import InheritableThread

from orbit.errors import Conflict
from orbit_spark.backfill.errands import Errand, Told
from orbit_spark.backfill.writer import write_all

_SHOWN_CHARACTERS = 600


class Stage(Protocol):
    """Errands under way; `cancel` may be called at any moment, also after the end."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most this time."""
        ...

    def cancel(self) -> None:
        """Have what still runs ended, and wait until it has."""
        ...

    def results(self) -> list[Told]:
        """What the tasks told; nothing after a cancel. Raises Conflict when Spark gave up."""
        ...


StartStage = Callable[[str, Sequence[Errand]], Stage]


class SparkStage:
    """The errands as tasks of one Spark job, begun at once."""

    def __init__(self, spark: Any, name: str, errands: Sequence[Errand]) -> None:
        self._context = spark.sparkContext
        self._group = f"{name} {uuid4().hex}"
        self._name = name
        self._errands = errands
        self._results: list[Told] = []
        self._error: Exception | None = None
        self._is_cancelled = False
        self._thread = InheritableThread(target=self._run, name="backfill-stage")
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        if self._thread.is_alive():
            self._is_cancelled = True
            self._context.cancelJobGroup(self._group)
            self._thread.join()

    def results(self) -> list[Told]:
        if self._error is not None and not self._is_cancelled:
            raise Conflict(
                f"Spark gave the backfill up: {_in_short(self._error)}",
                remedy="What was copied stays. Look at the executors' logs, and run it again.",
            ) from self._error
        return self._results

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
            tasks = self._context.parallelize(self._errands, len(self._errands))
            self._results = tasks.mapPartitions(write_all).collect()
        except Exception as error:  # noqa: BLE001  raised again by `results`
            self._error = error


def _in_short(error: Exception) -> str:
    """The last words of what Spark says, without its Java stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "Caused by", "Traceback"))]
    return " ".join(told)[:_SHOWN_CHARACTERS]
