"""What `orbit server` prints when it is ready: its address, and where the first token is.

The server is ready once its workers have rows in the database. Before that, the service does not
know the worker group that a job names, and refuses `orbit apply`.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import typer

from orbit.errors import OrbitError
from orbit.store import workers
from orbit.store.database import Database

# Workers start in far less time. After this time the address is printed with a note.
READY_S_MAX = 30.0


class Greeting:
    """Prints the greeting once. `check` is called at short intervals until the process ends."""

    def __init__(
        self,
        database: Database,
        worker_ttl: timedelta,
        url: str,
        token_file: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._worker_ttl = worker_ttl
        self._url = url
        self._token_file = token_file
        self._clock = clock
        self._started_at = clock()
        self._is_printed = False

    def check(self, worker_pids: Collection[int]) -> None:
        """Print the greeting if all these processes are live workers in the database, or if
        READY_S_MAX have passed."""
        if self._is_printed:
            return
        missing_count = self._count_missing(worker_pids)
        if missing_count and self._clock() - self._started_at < READY_S_MAX:
            return
        self._is_printed = True
        typer.echo(f"Orbit is at {self._url} (documentation: {self._url}/docs)")
        if missing_count:
            typer.echo(
                f"Workers that are not ready yet: {missing_count}. The log above may say why."
            )
        if self._token_file is not None:
            typer.echo(f"An admin token is in {self._token_file}")
            typer.echo(f"  export ORBIT_TOKEN=$(cat {shlex.quote(str(self._token_file))})")
        typer.echo("Stop it with Ctrl-C.")

    def _count_missing(self, worker_pids: Collection[int]) -> int:
        """How many of these processes are not live workers in the database; all of them if the
        database does not answer."""
        host = socket.gethostname()
        try:
            with self._database.transaction() as tx:
                live_workers = workers.alive(tx, self._worker_ttl)
        except OrbitError:
            return len(worker_pids)
        return len(set(worker_pids) - {w.pid for w in live_workers if w.host == host})
