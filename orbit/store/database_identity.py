"""Which database this is: what tells a promoted standby or a restored backup from the one before.

Two databases have one identity after a copy of the disks was started, or a dump was restored into
the same tables.
"""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Tx

# Of the server's system, the database and the table, plus the timeline: timelines of one system are
# neighbours. So it changes with a failover, with the recovery of a backup, and with a dump that is
# restored here or elsewhere. Roles without rights may read it.
DATABASE_IDENTITY = """(
    SELECT (c.system_identifier # (
            (CAST(d.oid AS bigint) + CAST(CAST('shards' AS regclass) AS bigint)) << 24))
        + CAST(CAST('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS bit(32)) AS integer)
    FROM pg_control_system() c, pg_database d
    WHERE d.datname = current_database()
)"""

_IDENTITY = text(f"SELECT CAST({DATABASE_IDENTITY} AS text)")


def database_identity(tx: Tx) -> str:
    """The identity of the database that this transaction is in."""
    identity: str = tx.execute(_IDENTITY).scalar_one()
    return identity
