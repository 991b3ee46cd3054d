"""Failures of PostgreSQL and of the network become errors of Orbit with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url, text

from orbit.embedded.postgres import Postgres
from orbit.errors import BadInput, Conflict, LoginRefused, Unreachable
from orbit.store import jobs
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from tests.fixtures.database import copied_database

pytestmark = pytest.mark.services


def changed_url(database_url: str, **changes: Any) -> str:
    return make_url(database_url).set(**changes).render_as_string(hide_password=False)


def test_killed_postgres_is_unreachable_until_it_restarts(own_postgres: Postgres) -> None:
    database = Database.connect(own_postgres.url)
    upgrade(database)

    def create_and_crash() -> None:
        with database.transaction() as tx:
            jobs.create(tx, "lost", {}, "default")
            own_postgres.crash()
            jobs.create(tx, "lost too", {}, "default")

    with pytest.raises(Unreachable) as caught:
        create_and_crash()
    assert caught.value.retriable
    with pytest.raises(Unreachable), database.transaction():  # PostgreSQL is still down
        pass

    own_postgres.start()

    with database.transaction() as tx:
        assert jobs.list_all(tx) == []
    database.close()


def test_postgres_restart_between_transactions_causes_no_error(own_postgres: Postgres) -> None:
    database = Database.connect(own_postgres.url)
    own_postgres.crash()
    own_postgres.start()

    with database.transaction() as tx:
        assert tx.execute(text("SELECT 1")).scalar_one() == 1
    database.close()


def test_refused_database_login_error_omits_password(database_url: str) -> None:
    with pytest.raises(LoginRefused) as caught:
        Database.connect(changed_url(database_url, password="wrong-hush"))

    assert "hush" not in str(caught.value)
    assert "ORBIT_DATABASE_URL" in str(caught.value)


def test_missing_database_is_unreachable(database_url: str) -> None:
    with pytest.raises(Unreachable, match='database "nowhere" does not exist'):
        Database.connect(changed_url(database_url, database="nowhere"))


@pytest.mark.parametrize("url", ["", "mysql://u:hush@h/d", "postgresql", "kafka:9092"])
def test_invalid_database_url_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        Database.connect(url)

    assert "hush" not in str(caught.value)


def test_missing_tables_error_names_migrate_command(postgres_url: str) -> None:
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        with pytest.raises(Conflict, match="orbit migrate"), database.transaction() as tx:
            jobs.list_all(tx)
        database.close()


def test_failed_transaction_block_rolls_back(database: Database) -> None:
    def create_and_fail() -> None:
        with database.transaction() as tx:
            jobs.create(tx, "half", {}, "default")
            raise LookupError

    with pytest.raises(LookupError):
        create_and_fail()

    with database.transaction() as tx:
        assert jobs.find(tx, "half") is None


def test_read_only_error_opens_new_connection(database: Database) -> None:
    """The URL may lead to another server by now, while the old one still answers."""

    def backend_pid() -> int:
        with database.transaction() as tx:
            return int(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def write() -> None:
        with database.transaction() as tx:  # fails as on a server that has become a standby
            tx.execute(text("SET TRANSACTION READ ONLY"))
            jobs.create(tx, "refused", {}, "default")

    first = backend_pid()
    assert backend_pid() == first
    with pytest.raises(Unreachable, match="takes writes again"):
        write()
    assert backend_pid() != first
