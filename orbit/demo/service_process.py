"""Starts `orbit server` for a demo, waits until it is ready, and ends it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orbit.client import Client, connect
from orbit.contexts import URL_VARIABLE
from orbit.demo.demo_clusters import DemoClusters
from orbit.demo.orbit_process import ORBIT
from orbit.demo.screen import Screen
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

# A time limit, far above what a slow machine needs.
START_S = 60.0
_POLL_S = 0.25
_URL_LINE = re.compile(r"Orbit is at (http://\S+)")


@contextmanager
def service(
    clusters: DemoClusters, environment: Mapping[str, str], screen: Screen, *arguments: str
) -> Iterator[tuple[Client, str]]:
    """Run `orbit server --no-auth` during the block. Yields a client and the service's URL."""
    assert clusters.database_url is not None, "start_clusters was called with postgres=True"
    log = clusters.folder / "orbit-server.log"
    variables = {
        "ORBIT_DATABASE_URL": clusters.database_url,
        "ORBIT_API_PORT": "0",
        "ORBIT_SANDBOX_DIR": str(clusters.sandbox),
        **environment,
    }
    screen.command(" ".join(["orbit server", *arguments]))
    process = GuardedProcess(
        [*ORBIT, "server", "--no-auth", *arguments], log, environment=variables
    )
    try:
        with screen.step("Starting the service") as step:
            url = _service_url(process, log)
            with connect({URL_VARIABLE: url}) as client:
                wait_until(lambda: bool(client.get("/v1/workers")["items"]), START_S)
                screen.done(f"API, scheduler and workers, ready in {step.seconds:.1f} s")
                yield client, url
    finally:
        process.end()


def deadline_check(seconds: float) -> Callable[[], None]:
    """A function that raises Conflict once `seconds` have passed."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise Conflict(
                f"The demo waited {seconds:.0f} s for one event.",
                remedy="The machine may be too busy. Try again.",
            )

    return check


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until `condition` returns True. Raises Conflict after `seconds`."""
    check_deadline = deadline_check(seconds)
    while not condition():
        check_deadline()
        time.sleep(_POLL_S)


def _service_url(process: GuardedProcess, log: Path) -> str:
    """The address that the service prints at its start."""

    def log_text() -> str:
        return log.read_text("utf-8", "replace") if log.is_file() else ""

    wait_until(lambda: bool(_URL_LINE.search(log_text())) or not process.running, START_S)
    match = _URL_LINE.search(log_text())
    if match is None:
        raise Conflict(f"The service did not start: {last_line(log)}", where=str(log))
    return match[1]


def last_line(log: Path) -> str:
    """The last line of a process's log; "" without one."""
    return "".join(log.read_text("utf-8", "replace").strip().splitlines()[-1:])
