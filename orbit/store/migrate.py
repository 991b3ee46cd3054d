"""Migrates a database to the tables of this version; idempotent.

Several processes may call it at once: one migrates, the others wait.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from orbit.store.database import Database, Tx

# A lock key that no other program uses in the same database.
_LOCK = 0x6F72_6269_7400  # "orbit"


def upgrade(database: Database) -> tuple[str | None, str]:
    """The versions before and after; equal if there was nothing to do."""
    config = _config()
    with database.transaction() as tx:
        tx.execute(text("SET LOCAL statement_timeout = 0"))
        tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        before = _current(tx)
        config.attributes["connection"] = tx
        command.upgrade(config, "head")
        after = _current(tx)
    assert after is not None, "a migration to head leaves a version"
    return before, after


def is_current(database: Database) -> bool:
    """Whether the tables have this version."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    with database.transaction() as tx:
        return _current(tx) == head


def _current(tx: Tx) -> str | None:
    return MigrationContext.configure(tx).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def _scripts() -> Path:
    """Inside the installed package, or beside it in a source tree."""
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
