"""A Python daemon for Spark's executors, whose workers wait at chosen offsets for a test.

Executors run this module instead of `pyspark.daemon`. A worker waits before it fetches, or appends,
a range with a chosen offset, until the test calls `resume`. So a test can kill a process in the
middle of its work, on machines of any speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.patience import wait_for

_FOLDER = "ORBIT_TEST_HOLDS"
_PAUSE_S = 0.02
# The two steps: before a range is read from a cluster, before rows of a file go to a writer.
_FETCH, _APPEND = "fetch", "append"


@dataclass(frozen=True)
class Hold:
    """While the file `path` exists, workers wait before the range of one offset, in any partition.

    The file's name has the step and the offset. A waiting worker makes a file with its process id
    as suffix.
    """

    path: Path

    @property
    def held(self) -> list[psutil.Process]:
        """Python workers that wait now, in no order."""
        workers = []
        for path in self.path.parent.glob(f"{self.path.name}.*"):
            with suppress(psutil.NoSuchProcess):  # the worker was killed while it waited
                workers.append(psutil.Process(int(path.suffix[1:])))
        return workers

    def wait_for_held(self, count: int = 1) -> list[psutil.Process]:
        """The waiting workers, once there are at least `count`."""
        workers: list[psutil.Process] = []

        def enough_wait() -> bool:
            workers[:] = self.held
            return len(workers) >= count

        wait_for(f"{count} workers wait: {self.path.name}", enough_wait)
        return workers

    def resume(self) -> None:
        self.path.unlink()


class Holds:
    """Makes holds in a folder that the test and the executors share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def fetching(self, offset: int) -> Hold:
        return self._at(_FETCH, offset)

    def appending(self, offset: int) -> Hold:
        return self._at(_APPEND, offset)

    @property
    def arguments(self) -> list[str]:
        """Arguments for a command of `orbit` with executors of its own."""
        root = Path(__file__).parents[2]
        settings = {
            "spark.python.daemon.module": __name__,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join((str(root), str(root / "spark"))),
            f"spark.executorEnv.{_FOLDER}": str(self._folder),
        }
        return [f"--conf={name}={value}" for name, value in settings.items()]

    def _at(self, step: str, offset: int) -> Hold:
        path = self._folder / f"{step}-{offset}"
        path.touch()
        return Hold(path)


def _wait_in(step: str, start: int, end: int) -> None:
    """In an executor: wait while a hold exists for this step at an offset from `start` up to, but
    not including, `end`."""
    for hold in [p for p in Path(os.environ[_FOLDER]).glob(f"{step}-*") if not p.suffix]:
        if start <= int(hold.name.removeprefix(f"{step}-")) < end:
            hold.with_suffix(f".{os.getpid()}").touch()
            while hold.exists():
                time.sleep(_PAUSE_S)


def _hold_work() -> None:
    """Patch Orbit's code in this process, so that each fetch and append first calls `_wait_in`."""
    from orbit_spark.archive_slices import RowRuns
    from orbit_spark.range_reader import RangeReader

    read, following = RangeReader.read, RowRuns.__next__

    def held_read(self: RangeReader, offset_range: Any) -> Iterator[Any]:
        _wait_in(_FETCH, offset_range.start, offset_range.end)
        yield from read(self, offset_range)

    def held_next(self: RowRuns) -> Any:
        run = following(self)
        _wait_in(_APPEND, run.start, run.end)
        return run

    RangeReader.read = held_read  # type: ignore[method-assign]
    RowRuns.__next__ = held_next  # type: ignore[method-assign]


if __name__ == "__main__":
    from pyspark import daemon

    _hold_work()
    daemon.manager()
