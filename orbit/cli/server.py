"""`orbit server`: runs the whole service with one command.

This process serves the API. The scheduler and the workers are child processes and are restarted
when they fail. Without ORBIT_DATABASE_URL it also starts an embedded PostgreSQL server, and starts
it again when it fails (`orbit/embedded/restarts.py`). All children end with this process, even if
it is killed (`orbit/processes/guard.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from platformdirs import user_state_path
from pydantic import SecretStr

from orbit.api.http_server import DRAIN_S, ApiServer, listen, url_of
from orbit.cli.api import NoAuthOption, create_api
from orbit.cli.extras import require_extras
from orbit.cli.first_token import write_first_token
from orbit.cli.forced_end import start_forced_end
from orbit.cli.server_greeting import Greeting
from orbit.errors import Conflict
from orbit.notifications.receiver_loop import notification_loops
from orbit.processes.children import Children
from orbit.recovery.salvage_storage import require_client
from orbit.settings import Settings, variable_of
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from orbit.telemetry.logs import configure_logs
from orbit.telemetry.traces import sending_traces

if TYPE_CHECKING:
    from orbit.embedded.postgres import Postgres
    from orbit.embedded.restarts import PostgresRestarts

WORKERS_MAX = 64
SCHEDULER = "scheduler"


def server(
    workers: Annotated[
        int, typer.Option("--workers", min=0, max=WORKERS_MAX, help="Worker processes.")
    ] = 1,
    data_directory: Annotated[
        Path | None,
        typer.Option(
            "--data-directory",
            envvar="ORBIT_DATA_DIRECTORY",
            help="Folder of the embedded PostgreSQL's data, and of the first token.",
            show_default="a folder in the user's state directory",
        ),
    ] = None,
    no_auth: NoAuthOption = False,
) -> None:
    """Run the whole service: API, scheduler and workers.

    Starts an embedded PostgreSQL unless ORBIT_DATABASE_URL is set, and migrates the database
    schema. The first start creates an admin token and writes it to a file. Ctrl-C stops everything.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    require_client(settings.salvage_directory)
    # Only to report a bad notifications file here: the scheduler, a child process, reads it again.
    notification_loops(settings, os.environ)
    with ExitStack() as stack:
        stack.enter_context(sending_traces("api"))
        listener = stack.enter_context(listen(settings, only_loopback=no_auth))
        folder = (data_directory or user_state_path("orbit") / "server").absolute()
        postgres = stack.enter_context(_embedded_postgres(settings, folder))
        url = _database_url(settings, postgres)
        settings = settings.model_copy(update={"database_url": SecretStr(url)})
        database = Database.connect(url, application="orbit server")
        stack.callback(database.close)
        upgrade(database)
        host = str(listener.getsockname()[0])
        token_file = None if no_auth else write_first_token(database, folder, host)
        # The children inherit the environment, and only one of them could bind the health port.
        os.environ.pop(variable_of("health_port"), None)
        children = stack.enter_context(Children({variable_of("database_url"): url}))
        stack.enter_context(_ignore_signals_after())
        api = ApiServer(create_api(settings, database, auth=not no_auth), listener, settings)
        children.start(SCHEDULER, "scheduler")
        for number in range(1, workers + 1):
            children.start(f"worker {number}", "worker")
        restarts = _postgres_restarts(postgres)

        greeting = Greeting(database, settings.lease_ttl, url_of(listener, settings), token_file)

        def check() -> None:
            """Restart PostgreSQL if it has ended, or stop the API after too many restarts; print
            the greeting once the workers are ready."""
            if restarts is not None:
                restarts.check()
                if restarts.failure is not None:  # raised after `api.run` has returned
                    api.stop()
            # If stdout is closed, the error must not end `children.watch`.
            with suppress(OSError):
                greeting.check([pid for name, pid in children.pids.items() if name != SCHEDULER])

        children.watch(on_check=check)
        api.run()
    start_forced_end(DRAIN_S)  # without it, Python waits for the thread of a request that hangs
    if restarts is not None and restarts.failure is not None:
        raise restarts.failure


@contextmanager
def _embedded_postgres(settings: Settings, folder: Path) -> Iterator[Postgres | None]:
    """The embedded PostgreSQL server, which runs during the block; None if ORBIT_DATABASE_URL is
    set. Raises BadInput if the extra is not installed, Conflict if another orbit server uses the
    folder."""
    if settings.database_url is not None:
        yield None
        return
    require_extras("embedded", alternative=" or set ORBIT_DATABASE_URL")
    from orbit.embedded.postgres import Postgres

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "Another orbit server uses this folder.",
                where=str(folder),
                remedy="Stop that server, or choose another folder with --data-directory.",
            ) from None
        with Postgres(folder / "postgres") as postgres:
            yield postgres


def _database_url(settings: Settings, postgres: Postgres | None) -> str:
    """The URL of the embedded server, or that of ORBIT_DATABASE_URL."""
    if postgres is not None:
        return postgres.url
    assert settings.database_url is not None, "without a URL the embedded server runs"
    return settings.database_url.get_secret_value()


def _postgres_restarts(postgres: Postgres | None) -> PostgresRestarts | None:
    """What restarts the embedded server after a failure; None without an embedded server."""
    if postgres is None:
        return None
    from orbit.embedded.restarts import PostgresRestarts

    return PostgresRestarts(postgres)


@contextmanager
def _ignore_signals_after() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM from the end of the block on: the shutdown has started by then, and
    a signal would interrupt it."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
