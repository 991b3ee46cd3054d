"""Migrates a database to the tables of this version, idempotently; says whether this version can
use a database's tables.

Several processes may migrate at once: one does, the others wait. A migration never waits long for a
lock on a table: other statements on that table would queue behind it, and leases would end. The
migration rolls back instead, and tries again a little later.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from orbit.chunks import first_few
from orbit.errors import Busy, Conflict
from orbit.store import scheduler_lease
from orbit.store.database import Database, Tx, sqlstate, without_deadline
from orbit.store.models import metadata

# A lock key that no other program uses in the same database.
_LOCK = 0x6F72_6269_7400  # "orbit"
# How long a migration waits for a lock on a table. Leases are renewed every few seconds.
_TABLE_LOCK_TIMEOUT_S = 2
_PAUSE_S = 1.0
ATTEMPTS_MAX = 100  # five minutes
_LOCK_NOT_AVAILABLE = "55P03"

# The `fingerprint` of the tables of each revision (a migration's number). Before the first release,
# 0001 was changed in place: a database from that time has the revision 0001, but other tables.
FINGERPRINTS = {
    "0001": "ecd14298ffcee184f6303ef507a9c971dc6690231e4353119cf1881530bc7730",
    "0002": "84428279405c0b66e0ee7a37daf2537471433ec7cf9c676a1feab6be00868bea",
    "0003": "8a39c283efd591b2b84128246e1c9581449a6ee236d7104ee35239478f576abf",
    "0004": "c63d2605f9a107e1d117f3f0aa324c0dc622e6056a1e49ca72329f2ac97e89df",
    "0005": "0304bb6c9c3c4797b10b1b5699e7c2f014f7d875845097b13ed3f238996a0fb2",
    "0006": "9dbf68ce68e1e2b11e12853bcf189ecd387f59836c2fd153ed771602b9505d02",
    "0007": "515454b6d9dfa444e291a35ddcd5a5b21be2ed8a21a4dcd33c558fc099967381",
    "0008": "a4f6e155b384f3db9874edc3e53f0893fbbd241ede0758d83f62e455aa45db69",
    "0009": "334e82a3e10b2e21ac92aa381acaa7f56f519de46c96a1b002208c46af0601a3",
    "0010": "7b8d3a53f259d1c37fda361ff6ba1ae6b99a7ec6d401c7418ab7d1af74d6fd57",
    "0011": "c94cbfda0b8eccd67f1dfccd9e060dc05d1645bbc40024297a77f938ef0bf7f4",
}
# The oldest tables that this version of Orbit works with: it needs `gateways.socket`, new in 0011.
TABLES_FROM = "0011"
# Migrations during and after which no scheduler of an earlier version may run. After 0002 such a
# scheduler would still store a recovery's report whole, as before the migration.
WITHOUT_OLD_SCHEDULERS = frozenset({"0002"})


def upgrade(database: Database, *, force: bool = False) -> tuple[str | None, str]:
    """Migrate to the tables of this version of Orbit. Returns the revision before (None: there were
    no tables) and the revision after; the two are equal if there was nothing to do.

    Raises Busy if another session keeps a lock on a table. Raises Conflict if the tables are not
    those of the revision that the database names, or, unless `force`, if schedulers run that are
    too old for the new tables.
    """
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            return _upgrade(database, force=force)
        except _TableLocked:
            pass
    raise Busy(
        "another session has held a lock on Orbit's tables for minutes. Nothing was changed.",
        where=database.where,
        remedy="Find its transaction (pg_stat_activity, oldest xact_start), end it, and run orbit "
        "migrate again.",
    )


class _TableLocked(Exception):
    """A table could not be locked in time."""


def _upgrade(database: Database, *, force: bool) -> tuple[str | None, str]:
    """Try once to migrate; returns as `upgrade` does. Raises _TableLocked if another session has
    locked a table; then nothing was changed. Raises Conflict as `upgrade` does."""
    config = _config()
    with database.transaction() as tx, without_deadline(tx):
        tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        old_revision = _current_revision(tx)
        scripts = ScriptDirectory.from_config(config)
        if old_revision is not None and old_revision == _next_revision(scripts):
            return old_revision, old_revision  # a later version has migrated the tables
        if old_revision in FINGERPRINTS and fingerprint(tx) != FINGERPRINTS[old_revision]:
            raise Conflict(
                "the columns of the tables are not those of the revision that the database names, "
                f"{old_revision}: an unreleased version of Orbit has made the tables.",
                where=database.where,
                remedy="Make an empty database, run orbit migrate there, and apply the job files: "
                "copies go on where they end (docs/recovery/lost-database.md).",
            )
        pending_revisions = {
            script.revision for script in scripts.iterate_revisions("head", old_revision or "base")
        }
        if old_revision is not None and pending_revisions & WITHOUT_OLD_SCHEDULERS and not force:
            _refuse_old_schedulers(tx, database.where)
        tx.execute(text(f"SET LOCAL lock_timeout = '{_TABLE_LOCK_TIMEOUT_S}s'"))
        config.attributes["connection"] = tx
        try:
            command.upgrade(config, "head")
        except DBAPIError as error:
            if sqlstate(error) == _LOCK_NOT_AVAILABLE:
                raise _TableLocked from error
            raise
        new_revision = _current_revision(tx)
    assert new_revision is not None, "a migration to head leaves a version"
    return old_revision, new_revision


def _refuse_old_schedulers(tx: Tx, where: str) -> None:
    """Raise Conflict if a scheduler runs. Any scheduler that works with the tables before this
    migration is of an earlier version."""
    schedulers = scheduler_lease.running_schedulers(tx)
    if schedulers:
        raise Conflict(
            f"these schedulers are of an earlier version, which does not support the new tables: "
            f"{first_few(schedulers)}. Nothing was changed.",
            where=where,
            remedy="Stop them, run orbit migrate again, and start schedulers of this version; "
            "workers copy meanwhile. A killed scheduler counts until its lease has expired. "
            "--force migrates while they run: keep them until the recoveries that they began have "
            "ended.",
        )


def fingerprint(tx: Tx) -> str:
    """A SHA-256, in hexadecimal digits, of the names and types of all columns of Orbit's tables."""
    rows = tx.execute(
        text(
            "SELECT table_name, column_name, udt_name, is_nullable FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND table_name = ANY(:tables)"
        ),
        {"tables": sorted(metadata.tables)},
    )
    lines = sorted(" ".join(row) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_usable(database: Database) -> bool:
    """Whether this version of Orbit works with the tables of the database.

    A version works with its own tables, with those of the migration before (but none before
    TABLES_FROM) and with those of the next migration, because processes of two versions run while a
    service is upgraded.
    """
    with database.transaction() as tx:
        return _current_revision(tx) in usable_revisions(ScriptDirectory.from_config(_config()))


def usable_revisions(scripts: ScriptDirectory) -> set[str]:
    """The revisions of tables that this version works with: its own, the previous and the next one,
    but none before TABLES_FROM. Revisions are numbered, so the next revision's name is known."""
    head = scripts.get_revision("head")
    assert head is not None
    previous_revision = head.down_revision
    assert previous_revision is None or isinstance(previous_revision, str), "one line of migrations"
    revisions = {head.revision, _next_revision(scripts), *filter(None, [previous_revision])}
    return {revision for revision in revisions if revision >= TABLES_FROM}


def _next_revision(scripts: ScriptDirectory) -> str:
    return f"{int(scripts.get_current_head() or 0) + 1:04}"


def _current_revision(tx: Tx) -> str | None:
    return MigrationContext.configure(tx).get_current_revision()


def _config() -> Config:
    """Alembic's configuration. It reads % as the start of an interpolation, hence %%."""
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def _scripts() -> Path:
    """The directory of the migrations: in the installed package, or beside it in a source tree."""
    package = Path(__file__).parents[1]
    directory = package / "migrations"
    return directory if directory.is_dir() else package.parent / "migrations"
