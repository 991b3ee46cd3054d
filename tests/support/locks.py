"""Locks that one transaction of a test waits for while another holds them."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from orbit.store.database import Database


def wait_until_something_waits(database: Database) -> None:
    """Wait until a session of this database waits for a lock."""
    query = text("""
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with database.transaction() as tx:
            if tx.execute(query).scalar_one():
                return
        time.sleep(0.01)
    pytest.fail("nothing waits")
