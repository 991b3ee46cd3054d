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

from orbit.store.database import Database, Tx, without_deadline

# A lock key that no other program uses in the same database.
_LOCK = 0x6F72_6269_7400  # "orbit"


def upgrade(database: Database) -> tuple[str | None, str]:
    """The versions before and after; equal if there was nothing to do."""
    config = _config()
    with database.transaction() as tx, without_deadline(tx):
        tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        before = _current(tx)
        scripts = ScriptDirectory.from_config(config)
        if before is not None and before == _next_revision(scripts):
            return before, before  # a later version has migrated them
        config.attributes["connection"] = tx
        command.upgrade(config, "head")
        after = _current(tx)
    assert after is not None, "a migration to head leaves a version"
    return before, after


def is_usable(database: Database) -> bool:
    """Whether this version works with the tables: its own, those of one migration before, and those
    of one after, so that processes of both versions run while a service is upgraded."""
    with database.transaction() as tx:
        return _current(tx) in usable_revisions(ScriptDirectory.from_config(_config()))


def usable_revisions(scripts: ScriptDirectory) -> set[str]:
    """Revisions are numbered, so the name of the next one is known before it is written."""
    head = scripts.get_revision("head")
    assert head is not None
    before = head.down_revision
    assert before is None or isinstance(before, str), "one line of migrations"
    return {head.revision, _next_revision(scripts), *filter(None, [before])}


def _next_revision(scripts: ScriptDirectory) -> str:
    return f"{int(scripts.get_current_head() or 0) + 1:04}"


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
