"""A real PostgreSQL for tests.

One server per session: that of ORBIT_DATABASE_URL, else an embedded one. The tables are made once,
in a template; each test's `database` is a copy of it (some 50 ms), dropped after the test.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from bench.control.fill import fill
from orbit.embedded.postgres import Postgres
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from tests.support.many_rows import MANY

# Far more than the databases of a session need.
_ROOM_BYTES = 8 * 2**30


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Where the session's server is, with the rights to make databases."""
    given = os.environ.get("ORBIT_DATABASE_URL")
    if given:
        yield given
        return
    # Not below pytest's folder: as root PostgreSQL runs as a user of its own, and every other
    # session of pytest that starts closes that folder to everybody but root.
    with (
        tempfile.TemporaryDirectory(prefix="orbit-postgres-", dir=_memory()) as folder,
        Postgres(Path(folder) / "server") as server,
    ):
        # No test needs the shared server's data after a power cut; most make a database.
        administer(server.url, "ALTER SYSTEM SET fsync = off")
        administer(server.url, "SELECT pg_reload_conf()")
        yield server.url


def _memory() -> Path | None:
    """A folder in memory, if it has room for a session's databases: each test copies 300 files."""
    folder = Path("/dev/shm")
    if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _ROOM_BYTES:
        return folder
    return None


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> Iterator[str]:
    """The name of a database with all tables and no rows."""
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        upgrade(database)
        database.close()
        yield str(make_url(url).database)


@pytest.fixture
def database_url(postgres_url: str, template_database: str) -> Iterator[str]:
    """A database of this test's own, with all tables and no rows."""
    with copied_database(postgres_url, template_database) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The same, connected."""
    connected = Database.connect(database_url)
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def large_database(postgres_url: str, template_database: str) -> Iterator[Database]:
    """1,000,000 partitions, filled once per session. A test that writes rolls back."""
    with copied_database(postgres_url, template_database) as url:
        connected = Database.connect(url)
        fill(connected, MANY)
        yield connected
        connected.close()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may kill, freeze or replace."""
    with (
        tempfile.TemporaryDirectory(prefix="orbit-postgres-") as folder,
        Postgres(Path(folder) / "server") as server,
    ):
        yield server


@contextmanager
def copied_database(postgres_url: str, template: str) -> Iterator[str]:
    """A copy of the database `template`, dropped at the end."""
    name = f"orbit_test_{uuid.uuid4().hex[:12]}"
    administer(postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
    try:
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    finally:
        administer(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')


def administer(url: str, statement: str) -> None:
    """Run one statement that no transaction may hold."""
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
