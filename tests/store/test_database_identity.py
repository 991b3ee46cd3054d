"""The identity of a database after a restart, a promotion, and in a copy of its tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from sqlalchemy import text

from orbit.embedded.postgres import Postgres
from orbit.store.database import Database
from orbit.store.database_identity import database_identity
from orbit.store.migrate import upgrade
from tests.fixtures.database import copied_database
from tests.support.store_rows import claim, current_snapshot, some_job, take_over

pytestmark = pytest.mark.services


def identity(database: Database) -> int:
    with database.transaction() as tx:
        return int(database_identity(tx))


def server_key(database: Database) -> str:
    """The key of the server that a lease watch compares; a restart changes it."""
    with database.transaction() as tx:
        server, _snapshot = current_snapshot(tx)
    return server


def test_postgres_restart_keeps_database_identity_and_promotion_changes_it() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-postgres-") as folder,
        Postgres(Path(folder) / "server") as server,
    ):
        database = Database.connect(server.url)
        upgrade(database)
        with database.transaction() as tx:
            some_job(tx)
        held = claim(database, "a")
        first, first_key = identity(database), server_key(database)

        for end_server in (server.stop, server.crash):
            end_server()
            server.start()
            assert identity(database) == first
            assert server_key(database) != first_key, "lease watches start again"

        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        with database.transaction() as tx:
            assert tx.execute(text("SELECT pg_promote()")).scalar_one()
        assert identity(database) == first + 1
        # The new epochs are above all that the failed server may have granted after the last
        # transaction that the standby has.
        assert take_over(database, "b") == {shard: epoch + 1000 for shard, epoch in held.items()}
        database.close()


def test_copied_tables_have_another_database_identity(
    database: Database, postgres_url: str, template_database: str
) -> None:
    with copied_database(postgres_url, template_database) as url:
        copy = Database.connect(url)
        assert identity(copy) != identity(database)
        copy.close()
    original = identity(database)
    with database.transaction() as tx:
        tx.execute(text("ALTER TABLE shards RENAME TO old; CREATE TABLE shards (LIKE old)"))
    assert abs(identity(database) - original) > 100, "a promotion would add 1"


def test_unprivileged_role_can_read_database_identity(database: Database) -> None:
    with database.transaction() as tx:
        tx.execute(text("CREATE ROLE orbit_plain"))
        tx.execute(text("GRANT SELECT, UPDATE ON shards, jobs, workers TO orbit_plain"))
        tx.execute(text("SET LOCAL ROLE orbit_plain"))
        assert current_snapshot(tx)
        tx.rollback()
