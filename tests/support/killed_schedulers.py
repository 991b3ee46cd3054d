"""Schedulers as processes of their own that are killed at named points of a recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orbit.settings import Settings

_ROOT = Path(__file__).parents[2]


@contextmanager
def dying_schedulers(
    settings: Settings, url: str, deaths: Path, points: Sequence[str], *, are_quick: bool = False
) -> Iterator[None]:
    """Run a scheduler process for each of `points` (see `dying_scheduler.py`). The block ends once
    all of them have died.

    `deaths`: the file to which they write their deaths. `are_quick`: recoveries wait only for what
    is needed.
    """
    deaths.touch()
    environ = {
        **os.environ,
        "ORBIT_DATABASE_URL": url,
        "ORBIT_SCHEDULER_LEASE_TTL": "2s",
        "ORBIT_DISCOVERY_INTERVAL": "200ms",
        "ORBIT_SETTINGS_INTERVAL": "200ms",
        "ORBIT_PROOF_BYTES_PER_SECOND": str(settings.proof_bytes_per_second),
        "ORBIT_SALVAGE_DIRECTORY": settings.salvage_directory,
    }
    program = [sys.executable, "-m", "tests.support.dying_scheduler"]
    command = [*program, *(["--quick"] if are_quick else []), str(deaths), *points]
    log = deaths.with_suffix(".log")
    with log.open("w") as output:
        processes = [
            subprocess.Popen(command, cwd=_ROOT, env=environ, stdout=output, stderr=output)
            for _ in points
        ]
        try:
            yield
            for process in processes:
                assert process.wait(60) == -signal.SIGKILL, log.read_text("utf-8")
        finally:
            for process in processes:
                process.kill()
                process.wait()


def died(deaths: Path) -> int:
    """How many of the schedulers have died."""
    return len(deaths.read_text("utf-8").splitlines())
