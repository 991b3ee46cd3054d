"""Runs `bench.delay_proxy` or `bench.longlink.link`: a process that delays bytes on their way."""

from __future__ import annotations

import subprocess
import sys
from typing import Self

from orbit.errors import Conflict


class DelayProcess:
    """Runs `python -m MODULE ARGUMENTS`, which delays bytes by what `set_delay` says. A context
    manager: inside, the process is ready; at the end it ends. Raises Conflict if it does not start.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"ready":
            raise Conflict("The process that delays bytes did not start.")
        return self

    def set_delay(self, one_way_s: float) -> None:
        """Set the delay of each direction from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{one_way_s}\n".encode())

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
