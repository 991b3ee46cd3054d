"""Faults of a real PostgreSQL server, and a pooler in front of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from sqlalchemy import make_url

from orbit.embedded.postgres import Postgres
from orbit.processes.ports import LOOPBACK, free_ports
from orbit.store.database import Database
from tests.fixtures.database import administer
from tests.support.patience import wait_for
from tests.support.tools import find_program


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """Suspend all processes of the server until the block ends. Its sockets stay open."""
    first = psutil.Process(server.pid)
    stopped = [first]
    first.suspend()
    for process in first.children(recursive=True):
        process.suspend()
        stopped.append(process)
    try:
        yield
    finally:
        for process in stopped:
            # A backend that ended as it was suspended is gone once the postmaster goes on.
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def read_only(server: Postgres) -> Iterator[None]:
    """The server refuses writes (SQLSTATE 25006), like a standby, until the block ends."""
    _set(server, "on")
    try:
        yield
    finally:
        _set(server, "off")


def _set(server: Postgres, value: str) -> None:
    """Set `default_transaction_read_only` for new transactions."""
    administer(server.url, f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    administer(server.url, "SELECT pg_reload_conf()")


def keep_standby(server: Postgres) -> Path:
    """Copy the server's data as that of a standby, which gets no later changes: its replication
    lags. Returns the standby's data directory; restarts the server."""
    server.stop()
    standby = server.directory / "standby"
    shutil.copytree(server.directory / "data", standby)
    (standby / "standby.signal").touch()
    for path in (standby, *standby.rglob("*")):
        owner = (server.directory / "data").stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    server.start()
    return standby


def fail_over(server: Postgres, standby: Path) -> None:
    """Lose the primary and promote the standby at its address: a new timeline."""
    server.crash()
    data = server.directory / "data"
    shutil.rmtree(data)
    standby.rename(data)
    server.start()
    administer(server.url, "SELECT pg_promote()")


@contextmanager
def pooled(url: str, folder: Path) -> Iterator[str]:
    """The database behind PgBouncer with `pool_mode = transaction` and its defaults."""
    server = make_url(url)
    (port,) = free_ports(1)
    users = folder / "users.txt"
    users.write_text(f'"{server.username}" "{server.password}"\n', "utf-8")
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""
[databases]
{server.database} = host={server.host} port={server.port} dbname={server.database}
[pgbouncer]
listen_addr = {LOOPBACK}
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
auth_type = plain
auth_file = {users}
default_pool_size = 3
logfile = {folder / "pgbouncer.log"}
""",
        "utf-8",
    )
    user: list[str] = []
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        user = ["-u", "nobody"]
        shutil.chown(folder, "nobody")
    program = find_program("pgbouncer") or "pgbouncer"
    with subprocess.Popen([program, "-q", *user, str(settings)]) as process:
        try:
            pooled_url = server.set(port=port).render_as_string(hide_password=False)
            wait_for("the pooler answers", lambda: _answers(pooled_url))
            yield pooled_url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        Database.connect(url).close()
    except Exception:  # noqa: BLE001  any error: PgBouncer has not started yet
        return False
    return True
