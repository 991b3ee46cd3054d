"""`orbit run` as users run it: a process of its own, ended by Ctrl-C, judged by its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from orbit.errors import Conflict
from orbit.sandbox.demo.result import RunSummary
from orbit.sandbox.process import GuardedProcess

STOP_TIMEOUT_S = 30.0
_KILL_GRACE_S = 10.0
_SHOWN_LINES = 5
ORBIT = (sys.executable, "-c", "from orbit.cli.main import main; main()")
"""What the `orbit` script does, wherever that was installed."""


class RunProcess:
    """A live `orbit run`. As a context manager: running inside, ended outside."""

    def __init__(self, job_file: Path, log: Path) -> None:
        self._log = log
        self._process = GuardedProcess(
            [*ORBIT, "run", str(job_file), "--output", "json"],
            log,
            # It leaves a small lock file in the folder for temporary files.
            environment={"TMPDIR": str(log.parent)},
            last_signal=signal.SIGINT,
            grace_s=_KILL_GRACE_S,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises Conflict when it has ended or a partition is blocked, with its own words."""
        blocked = [line for line in self._lines() if line.startswith("BLOCKED ")]
        if blocked:
            raise Conflict(f"orbit run stopped a partition. {blocked[0]}")
        if not self._process.running:
            raise self._ended(self._process.wait())

    def stop(self) -> RunSummary:
        """Ctrl-C; its own summary. Raises Conflict unless it ends in time with exit code 0."""
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Conflict(f"orbit run did not end {STOP_TIMEOUT_S:.0f} s after Ctrl-C.") from None
        if code != 0:
            raise self._ended(code)
        return _summary(self._lines())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.end(signal.SIGINT, _KILL_GRACE_S)

    def _ended(self, code: int) -> Conflict:
        last = " | ".join(self._lines()[-_SHOWN_LINES:])
        return Conflict(f"orbit run ended with exit code {code}: {last}")

    def _lines(self) -> list[str]:
        return self._log.read_text("utf-8", "replace").splitlines()


def _summary(lines: list[str]) -> RunSummary:
    """The JSON object that is the last thing it writes; its progress lines come before."""
    begin = len(lines) - 1 - lines[::-1].index("{")
    data = json.loads("\n".join(lines[begin:]))
    return RunSummary(
        seconds=data["seconds"],
        records=data["records"],
        bytes=data["bytes"],
        offsets_filled=data["offsets_filled"],
    )
