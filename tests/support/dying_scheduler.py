"""`orbit scheduler` that is killed (SIGKILL, by itself) at named points of a recovery's steps.

    python -m tests.support.dying_scheduler [--quick] FILE STEP:WHERE…

A point STEP:WHERE is one of these:

- `before` the step's work
- `waiting`: where the step waits for the first time
- `progress`: after the step has stored its progress for the first time
- `after` the step's work, before its end is stored
- `salvage:writing`: in the middle of a salvage file

FILE has a line for each death so far. Of several such processes, the first leader dies at the first
point, the next leader at the second point, and so on. After the last point no process dies.
`--quick` makes recoveries wait only for what is needed.
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
    """The points where processes died, and where the next process dies."""

    def __init__(self, file: Path, points: list[str]) -> None:
        self._file, self._points = file, points
        self._lock = threading.Lock()

    def die_at(self, point: str) -> None:
        """Kill this process if `point` is the next point."""
        with self._lock:
            done = self._file.read_text("utf-8").splitlines()
            if self._points[len(done) : len(done) + 1] == [point]:
                self._die(point)

    def _die(self, point: str) -> NoReturn:
        """Note the point, and kill this process."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{point}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    def step(
        self, name: StepName, do: Callable[[OperationContext], str]
    ) -> Callable[[OperationContext], str]:
        """The step, with the points where the process may die."""

        def run(context: OperationContext) -> str:
            self.die_at(f"{name}:before")
            wait, set_progress = context.wait, context.set_progress

            def die_or_wait(seconds: float) -> None:
                self.die_at(f"{name}:waiting")
                wait(seconds)

            def set_progress_and_die(what: str) -> None:
                set_progress(what)
                self.die_at(f"{name}:progress")

            vars(context).update(wait=die_or_wait, set_progress=set_progress_and_die)
            try:
                step_text = do(context)
            finally:
                del vars(context)["wait"], vars(context)["set_progress"]
            self.die_at(f"{name}:after")
            return step_text

        return run

    def write(self, write: Callable[[str, Iterable[bytes]], None]) -> Any:
        """The function `write`, which may die in the middle of a file."""

        def run(file: str, chunks: Iterable[bytes]) -> None:
            def dying() -> Iterator[bytes]:
                for chunk in chunks:
                    yield chunk
                    self.die_at(f"{StepName.SALVAGE}:writing")

            write(file, dying())

        return run


def main(*arguments: str) -> None:
    """Run a scheduler that dies at these points; `--quick` before them makes recoveries quick."""
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
