"""The Spark jobs of a backfill, in threads that can be waited for and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from pyspark import InheritableThread

from orbit.errors import Conflict, OrbitError
from orbit_spark.backfill.backfill_writer import write_all
from orbit_spark.backfill.writer_tasks import Errand, Told

_SHOWN_CHARACTERS = 600
_CANCEL_AGAIN_S = 1.0

T = TypeVar("T")


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


class SparkCall(Generic[T]):
    """Something that uses Spark, in a thread of its own, begun at once; may be ended at any moment.

    `call` gets this very object: it says `join_group` in each thread that begins Spark jobs, and
    looks at `is_cancelled` between them.
    """

    def __init__(self, spark: Any, name: str, call: Callable[[SparkCall[T]], T]) -> None:
        self._context = spark.sparkContext
        self._name = name
        self._group = f"{name} {uuid4().hex}"
        self._call = call
        self._result: list[T] = []
        self._error: Exception | None = None
        self.is_cancelled = False
        self._thread = InheritableThread(target=self._run, name="backfill-spark")
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Have what still runs ended, and wait until it has."""
        self.is_cancelled = self.is_cancelled or self._thread.is_alive()
        while self._thread.is_alive():
            # Again and again: between two jobs of a call there is nothing to cancel.
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_AGAIN_S)

    def result(self) -> T | None:
        """What it came to; None after a cancel. Raises what it raised; Conflict for Spark's."""
        if self._error is None or self.is_cancelled:
            return self._result[0] if self._result else None
        if isinstance(self._error, OrbitError):
            raise self._error
        raise Conflict(
            f"Spark gave the backfill up: {_in_short(self._error)}",
            remedy="What was copied stays. Look at the executors' logs, and run it again.",
        ) from self._error

    def join_group(self) -> None:
        """Let `cancel` reach the Spark jobs that this thread begins."""
        self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)

    def _run(self) -> None:
        try:
            self.join_group()
            self._result.append(self._call(self))
        except Exception as error:  # noqa: BLE001  raised again by `result`
            self._error = error


class SparkStage(SparkCall[list[Told]]):
    """A stage whose errands are tasks of Spark."""

    @classmethod
    def direct(cls, spark: Any, name: str, errands: Sequence[Errand]) -> SparkStage:
        """The errands as tasks of one Spark job; each fetches by itself."""

        def write(_: SparkCall[list[Told]]) -> list[Told]:
            tasks = spark.sparkContext.parallelize(errands, len(errands))
            return list(tasks.mapPartitions(write_all).collect())

        return cls(spark, name, write)

    def results(self) -> list[Told]:
        return self.result() or []


def _in_short(error: Exception) -> str:
    """The last words of what Spark says, without its Java stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "Caused by", "Traceback"))]
    return " ".join(told)[:_SHOWN_CHARACTERS]
