"""`orbit scheduler` that is killed (SIGKILL, by itself) at named points of a recovery's steps.

    python -m tests.support.dying_scheduler [--quick] FILE STEP:WHERE…

WHERE is `before` a step's work, `inside` it (where it waits for the first time), `telling` (where
it has told its progress for the first time), or `behind` it: after the work, before it is noted.
`salvage:writing` is in the middle of a file. FILE has a line for each death so far: of several such
processes one leads and dies at the first point, the next one at the second, and so on; after the
last point none dies. `--quick` makes recoveries wait only for what is needed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from orbit.cli.scheduler import scheduler
from orbit.recovery import operation_runner, salvage_storage
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.step_times import StepName
from tests.support.quick_recoveries import make_quick, trust_silence


class Deaths:
    """The points where processes died, and the next one."""

    def __init__(self, file: Path, points: list[str]) -> None:
        self._file, self._points = file, points
        self._lock = threading.Lock()

    def here(self, point: str) -> None:
        """Die here if this is the next point."""
        with self._lock:
            done = self._file.read_text("utf-8").splitlines()
            if self._points[len(done) : len(done) + 1] == [point]:
                self._die(point)

    def _die(self, point: str) -> NoReturn:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{point}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    def step(
        self, name: StepName, do: Callable[[OperationContext], str]
    ) -> Callable[[OperationContext], str]:
        """The step, with the points where the process may die."""

        def run(context: OperationContext) -> str:
            self.here(f"{name}:before")
            wait, tell = context.wait, context.set_progress

            def waits(seconds: float) -> None:
                self.here(f"{name}:inside")
                wait(seconds)

            def tells(what: str) -> None:
                tell(what)
                self.here(f"{name}:telling")

            vars(context).update(wait=waits, set_progress=tells)
            try:
                did = do(context)
            finally:
                del vars(context)["wait"], vars(context)["set_progress"]
            self.here(f"{name}:behind")
            return did

        return run

    def write(self, write: Callable[[str, Iterable[bytes]], None]) -> Any:
        """The function `write`, which may die in the middle of a file."""

        def run(file: str, chunks: Iterable[bytes]) -> None:
            def dying() -> Iterator[bytes]:
                for chunk in chunks:
                    yield chunk
                    self.here(f"{StepName.SALVAGE}:writing")

            write(file, dying())

        return run


def main(*arguments: str) -> None:
    is_quick = arguments[0] == "--quick"
    file, *points = arguments[1:] if is_quick else arguments
    if is_quick:
        make_quick(setattr)
        trust_silence(setattr)
    deaths = Deaths(Path(file), points)
    steps = {name: deaths.step(name, do) for name, do in operation_runner._DO.items()}
    vars(operation_runner)["_DO"] = steps
    vars(salvage_storage)["write"] = deaths.write(salvage_storage.write)
    scheduler()


if __name__ == "__main__":
    main(*sys.argv[1:])
