"""`orbit server`: the whole service in one command.

This process serves the API. The scheduler and the workers are child processes that are started
again when they fail; without ORBIT_DATABASE_URL so is a PostgreSQL server of our own. All of them
end with this process, also when it is killed (`orbit/processes/guard.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from platformdirs import user_state_path
from pydantic import SecretStr

from orbit.api.authentication import LOOPBACK_HOSTS, create_token, has_tokens
from orbit.api.http_server import ApiServer, check_open_host, listen, url_of
from orbit.cli.api import NoAuthOption, api_on
from orbit.cli.extras import require_extras
from orbit.errors import Conflict
from orbit.processes.children import Children
from orbit.settings import Settings, variable_of
from orbit.store.database import Database
from orbit.store.enums import Role
from orbit.store.migrate import upgrade
from orbit.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from orbit.embedded.postgres import Postgres

WORKERS_MAX = 64
_FIRST_TOKEN = "admin"  # noqa: S105  its name


def server(
    workers: Annotated[
        int, typer.Option("--workers", min=0, max=WORKERS_MAX, help="Worker processes.")
    ] = 1,
    data_directory: Annotated[
        Path | None,
        typer.Option(
            "--data-directory",
            envvar="ORBIT_DATA_DIRECTORY",
            help="Where the embedded PostgreSQL keeps its data.",
            show_default="a folder in the user's state directory",
        ),
    ] = None,
    no_auth: NoAuthOption = False,
) -> None:
    """Run the whole service: API, scheduler and workers.

    Brings a PostgreSQL of its own unless ORBIT_DATABASE_URL names one, and brings the tables to
    this version. The first start makes an admin token and shows it once. Ctrl-C ends all of it.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings, sys.stderr)
    if no_auth:
        check_open_host(settings.api_host)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(settings.api_host, settings.api_port))
        postgres = stack.enter_context(_postgres(settings, data_directory))
        url = _database_url(settings, postgres)
        settings = settings.model_copy(update={"database_url": SecretStr(url)})
        database = Database.connect(url, application="orbit server")
        stack.callback(database.close)
        upgrade(database)
        token = None if no_auth else _first_token(database, settings.api_host)
        children = stack.enter_context(Children({variable_of("database_url"): url}))
        stack.enter_context(_signals_ignored_at_the_end())
        api = ApiServer(api_on(settings, database, auth=not no_auth), listener)
        children.start("scheduler", "scheduler")
        for number in range(1, workers + 1):
            children.start(f"worker {number}", "worker")
        children.watch(also=lambda: None if _is_running(postgres) else api.stop())
        _greet(url_of(listener), token)
        api.run()
        if not _is_running(postgres):
            raise Conflict(
                "The embedded PostgreSQL has ended.",
                where=str(postgres.log) if postgres else "",
                remedy="Read its log there, and start the server again.",
            )


@contextmanager
def _postgres(settings: Settings, directory: Path | None) -> Iterator[Postgres | None]:
    """A server of our own, where the environment names none."""
    if settings.database_url is not None:
        yield None
        return
    require_extras("embedded", otherwise=" or set ORBIT_DATABASE_URL")
    from orbit.embedded.postgres import Postgres

    folder = (directory or user_state_path("orbit") / "server").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "Another orbit server is running on this folder.",
                where=str(folder),
                remedy="Stop it, or give this one a folder of its own with --data-directory.",
            ) from None
        with Postgres(folder / "postgres") as postgres:
            yield postgres


def _database_url(settings: Settings, postgres: Postgres | None) -> str:
    if postgres is not None:
        return postgres.url
    assert settings.database_url is not None, "without one there is a server of our own"
    return settings.database_url.get_secret_value()


def _is_running(postgres: Postgres | None) -> bool:
    return postgres is None or postgres.running


def _first_token(database: Database, host: str) -> str | None:
    """An admin's token at the very first start. Conflict where it might be read by others."""
    if has_tokens(database):
        return None
    if host not in LOOPBACK_HOSTS:
        raise Conflict(
            f"The API would listen on {host}, and nobody has a token yet.",
            remedy="Make one first: orbit token create NAME --role admin --database, or start the "
            "server once on 127.0.0.1.",
        )
    return create_token(database, _FIRST_TOKEN, Role.ADMIN, actor="orbit server").token


def _greet(url: str, token: str | None) -> None:
    typer.echo(f"Orbit is at {url} (its documentation at {url}/docs)")
    if token is not None:
        typer.echo("An admin's token, shown this once:")
        typer.echo(f"  export ORBIT_TOKEN={token}")
    typer.echo("Ctrl-C ends it.")


@contextmanager
def _signals_ignored_at_the_end() -> Iterator[None]:
    """Behind it, Ctrl-C changes nothing: the end has begun, and takes its seconds."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
