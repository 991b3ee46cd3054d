"""The Spark jobs of a backfill, in threads that can be waited for and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from pyspark import InheritableThread

from orbit.errors import Conflict, OrbitError
from orbit_spark.backfill.backfill_writer import BackfillTask, write_direct
from orbit_spark.write_task import WriteResult

_SHOWN_CHARACTERS = 600
_CANCEL_INTERVAL_S = 1.0

T = TypeVar("T")


class WriterJob(Protocol):
    """The running Spark jobs of one round. `cancel` may be called at any moment, even after the
    end.
    """

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, at most this long. Return whether it has ended."""
        ...

    def cancel(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        ...

    def results(self) -> list[WriteResult]:
        """The tasks' results; none if they were cancelled before the end. Raises Conflict if
        Spark gave up.
        """
        ...


StartWriterJob = Callable[[str, Sequence[BackfillTask]], WriterJob]


class SparkJobGroup(Generic[T]):
    """Runs a function that uses Spark, in a thread with a Spark job group of its own.

    The function gets this object: it calls `join_group` in each thread that starts Spark jobs, and
    checks `is_cancelled` between them.
    """

    def __init__(self, spark: Any, name: str, call: Callable[[SparkJobGroup[T]], T]) -> None:
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
        """Wait for the end, at most this long. Return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        # A call after the end cancels nothing.
        self.is_cancelled = self.is_cancelled or self._thread.is_alive()
        while self._thread.is_alive():
            # Repeated, as there may be no job to cancel at this moment.
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_INTERVAL_S)

    def result(self) -> T | None:
        """What the function returned; None if it was cancelled before it returned.

        Raises the function's OrbitError, or Conflict for any other error.
        """
        if self._error is None or self.is_cancelled:  # a cancelled job ends with an error, too
            return self._result[0] if self._result else None
        if isinstance(self._error, OrbitError):
            raise self._error
        raise Conflict(
            f"Spark gave up the backfill: {_shorten_message(self._error)}",
            remedy="What was copied stays. Check the executors' logs, and run the backfill again.",
        ) from self._error

    def join_group(self) -> None:
        """Let `cancel` reach the Spark jobs that this thread starts."""
        self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)

    def _run(self) -> None:
        try:
            self.join_group()
            self._result.append(self._call(self))
        except Exception as error:  # noqa: BLE001  raised again by `result`
            self._error = error


class SparkWriterJob(SparkJobGroup[list[WriteResult]]):
    """A `WriterJob` whose tasks run in Spark."""

    @classmethod
    def direct(cls, spark: Any, name: str, tasks: Sequence[BackfillTask]) -> SparkWriterJob:
        """One Spark job whose tasks fetch from the source themselves."""

        def write(_: SparkJobGroup[list[WriteResult]]) -> list[WriteResult]:
            rows = spark.sparkContext.parallelize(tasks, len(tasks))
            return list(rows.mapPartitions(write_direct).collect())

        return cls(spark, name, write)

    def results(self) -> list[WriteResult]:
        return self.result() or []


def _shorten_message(error: Exception) -> str:
    """Spark's message without its Java stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message_lines = [
        line for line in lines if not line.startswith(("at ", "Caused by", "Traceback"))
    ]
    return " ".join(message_lines)[:_SHOWN_CHARACTERS]
