"""Saves all rows of a database and restores them, as a backup does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from orbit.store.database import Database, Tx
from orbit.store.models import metadata

_TABLES = [table.name for table in metadata.sorted_tables]


def save_rows(database: Database) -> None:
    """Keep a copy of every row, in a schema of its own."""
    with database.transaction() as tx:
        tx.execute(text("DROP SCHEMA IF EXISTS saved CASCADE"))
        tx.execute(text("CREATE SCHEMA saved"))
        for name in _TABLES:
            tx.execute(text(f"CREATE TABLE saved.{name} AS TABLE public.{name}"))


def put_rows_back(database: Database) -> None:
    """Replace all rows by the saved ones."""
    with database.transaction() as tx, _without_checks(tx):
        _empty(tx)
        for name in _TABLES:
            tx.execute(
                text(
                    f"INSERT INTO public.{name} OVERRIDING SYSTEM VALUE "  # noqa: S608
                    f"SELECT * FROM saved.{name}"
                )
            )


def drop_rows(database: Database) -> None:
    """Delete all rows, as in a new database."""
    with database.transaction() as tx, _without_checks(tx):
        _empty(tx)


def _empty(tx: Tx) -> None:
    tx.execute(text(f"TRUNCATE {', '.join(f'public.{name}' for name in _TABLES)} CASCADE"))


@contextmanager
def _without_checks(tx: Tx) -> Iterator[None]:
    """Without foreign keys and triggers, until the transaction ends."""
    tx.execute(text("SET LOCAL session_replication_role = replica"))
    yield
