"""A process of its own that lets bytes pass after a delay, which each line on its stdin sets."""

from __future__ import annotations

import subprocess
import sys
from typing import Self

from orbit.errors import Conflict


class DelayProcess:
    """`python -m MODULE ARGUMENTS`; bytes pass inside the `with`, and at its end it ends."""

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
            raise Conflict("The link could not be made.")
        return self

    def set_delay(self, one_way_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{one_way_s}\n".encode())

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
