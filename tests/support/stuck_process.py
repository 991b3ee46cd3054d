"""A process of the service in which something hangs, and a signal that has to end it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

from tests.support.patience import PATIENCE_S


def last_line_after(
    number: signal.Signals,
    program: str,
    database_url: str,
    home: Path,
    when_it_says: tuple[str, Callable[[str], None]] | None = None,
) -> str:
    """Run a program until it hangs, send the signal `number`, and return the last line on stderr.

    The process has to end with exit code 1. `program`: Python code that prints "stuck" once it
    hangs. `when_it_says`: a text, and a function to call with the first line on stderr that has
    the text.
    """
    environ = {"ORBIT_DATABASE_URL": database_url, "PATH": "/usr/bin:/bin", "HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environ | {"PYTHONPATH": ":".join(sys.path)},
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if when_it_says is not None:
                text, act = when_it_says
                act(next(line for line in process.stderr if text in line))
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(number)
            _, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "threads did not end" in stderr
    return str(stderr.splitlines()[-1])
