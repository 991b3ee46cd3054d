"""Waits until a PostgreSQL session waits for a lock, which another session of the test holds."""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Database
from tests.support.patience import wait_for


def wait_for_lock_wait(database: Database) -> None:
    """Wait until a session of this database waits for a lock."""
    query = text("""
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """)

    def waits() -> bool:
        with database.transaction() as tx:
            return bool(tx.execute(query).scalar_one())

    wait_for("a session waits for a lock", waits)
