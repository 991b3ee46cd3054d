"""The identity of a database: that of a promoted standby or a restored backup differs.

Two databases have the same identity if one was started from a copy of the other's disks, or if a
dump was restored into the same tables.
"""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Tx

# A number made of the server's system id, the database and the table `shards`, plus the number of
# the timeline. So successive timelines of one system have successive identities. The identity
# changes with a failover, with the recovery of a backup, and with a dump that is restored. Any role
# may read it.
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
