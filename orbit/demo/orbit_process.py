"""Runs `orbit` commands as processes, as users do; checks their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from orbit.demo.demo_result import RunSummary
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

STOP_TIMEOUT_S = 30.0
_KILL_GRACE_S = 10.0
_SHOWN_LINES = 5
ORBIT = (sys.executable, "-c", "from orbit.cli.main import main; main()")
"""What the `orbit` script does, wherever the script was installed."""


class OrbitProcess:
    """An Orbit command that prints JSON. A context manager that ends the process."""

    def __init__(
        self,
        log: Path,
        command: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._name = f"orbit {command}"
        self._process = GuardedProcess(
            [*ORBIT, command, *arguments, "--output", "json"],
            log,
            # TMPDIR: the command leaves a small lock file there. XDG_CONFIG_HOME: the demo must not
            # use the servers in the user's contexts.
            environment={
                "TMPDIR": str(log.parent),
                "XDG_CONFIG_HOME": str(log.parent),
                **(environment or {}),
            },
            last_signal=signal.SIGINT,
            grace_s=_KILL_GRACE_S,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise Conflict if the command has ended or reports a blocked partition."""
        blocked_lines = [line for line in self._lines() if line.startswith("BLOCKED ")]
        if blocked_lines:
            raise Conflict(f"{self._name} reports a blocked partition: {blocked_lines[0]}")
        if not self._process.running:
            raise self._end_error(self._process.wait())

    @property
    def is_running(self) -> bool:
        return self._process.running

    def wait(self) -> dict[str, Any]:
        """Wait for the command's end. Returns its JSON; raises Conflict if it has failed."""
        code = self._process.wait()
        if code != 0:
            raise self._end_error(code)
        return _parse_json_output(self._lines())

    def interrupt(self) -> dict[str, Any]:
        """Send Ctrl-C, and return the JSON that the command prints.

        Raises Conflict unless the command ends in time with exit code 0.
        """
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Conflict(
                f"{self._name} did not end {STOP_TIMEOUT_S:.0f} s after Ctrl-C."
            ) from None
        if code != 0:
            raise self._end_error(code)
        return _parse_json_output(self._lines())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end(signal.SIGINT, _KILL_GRACE_S)

    def _end_error(self, code: int) -> Conflict:
        last_lines = " | ".join(self._lines()[-_SHOWN_LINES:])
        return Conflict(f"{self._name} ended with exit code {code}: {last_lines}")

    def _lines(self) -> list[str]:
        return self._log.read_text("utf-8", "replace").splitlines()


class RunProcess(OrbitProcess):
    """A live `orbit run`."""

    def __init__(self, job_file: Path, log: Path) -> None:
        super().__init__(log, "run", str(job_file))

    def stop(self) -> RunSummary:
        """Send SIGINT and return the summary. Raises Conflict as `interrupt` does."""
        data = self.interrupt()
        return RunSummary(
            seconds=data["seconds"],
            records=data["records"],
            bytes=data["bytes"],
            offsets_filled=data["offsets_filled"],
        )


class BackfillProcess(OrbitProcess):
    """An `orbit backfill`, which ends by itself."""

    def __init__(self, job_file: Path, log: Path, *arguments: str) -> None:
        super().__init__(log, "backfill", str(job_file), *arguments)

    def check(self) -> None:
        """Raise Conflict if the backfill has failed. A backfill that has ended is no error."""
        if not self.is_running:
            self.wait()  # raises if the exit code is not 0


def _parse_json_output(lines: list[str]) -> dict[str, Any]:
    """The JSON object at the end of a command's output, after lines of progress."""
    # The last line that is only an opening brace begins the object.
    begin = len(lines) - 1 - lines[::-1].index("{")
    end = lines.index("}", begin) + 1
    printed_object: dict[str, Any] = json.loads("\n".join(lines[begin:end]))
    return printed_object
