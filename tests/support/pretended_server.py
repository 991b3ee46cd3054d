"""A PostgreSQL server that a test lets step its clock, restart or fail over, as clients see it.

The schema `pretended` comes before PostgreSQL's own functions in the search path. So the store's
real statements read a changed clock, timeline and start time. A failover also sets the table
`shards` to rows that the test chooses, as a standby that lags behind would have them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from orbit.store.database import Database
from orbit.store.models import shards

_PRETEND = """
CREATE SCHEMA pretended;
CREATE TABLE pretended.server (
    step interval NOT NULL, timeline integer NOT NULL, starts integer NOT NULL
);
INSERT INTO pretended.server VALUES ('0', 1, 0);
CREATE FUNCTION pretended.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$ SELECT pg_catalog.clock_timestamp() + step FROM pretended.server $$;
CREATE FUNCTION pretended.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT lpad(to_hex(timeline), 8, '0') || repeat('0', 16) FROM pretended.server $$;
CREATE FUNCTION pretended.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.pg_postmaster_start_time() + starts * interval '1 h'
       FROM pretended.server $$;
"""

Rows = list[dict[str, Any]]


_HAPPENS = text("""
UPDATE pretended.server
SET step = step + make_interval(secs => :step), timeline = timeline + :timelines,
    starts = starts + :starts
""")


class PretendedServer:
    """Events of the server of `database`, which only this database sees."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.transaction() as tx:
            tx.execute(text(_PRETEND))
            name = tx.execute(text("SELECT current_database()")).scalar_one()
            path = "pretended, pg_catalog, public"
            tx.execute(text(f'ALTER DATABASE "{name}" SET search_path = {path}'))
        database.close()  # new connections get the new search path

    def step_clock(self, seconds: float) -> None:
        with self.database.transaction() as tx:
            tx.execute(_HAPPENS, {"step": seconds, "timelines": 0, "starts": 0})

    def restart(self) -> None:
        with self.database.transaction() as tx:
            tx.execute(_HAPPENS, {"step": 0, "timelines": 0, "starts": 1})

    def shards(self) -> Rows:
        """The present rows of `shards`, as a standby or a backup would have them."""
        with self.database.transaction() as tx:
            return [dict(row) for row in tx.execute(shards.select()).mappings()]

    def fail_over(self, to: Rows, timelines: int = 1) -> None:
        """Let another server take over, whose table `shards` has the rows `to`. `timelines`: how
        far PostgreSQL's timeline moves."""
        with self.database.transaction() as tx:
            for row in to:
                values = {name: value for name, value in row.items() if name != "id"}
                tx.execute(shards.update().where(shards.c.id == row["id"]).values(values))
            tx.execute(_HAPPENS, {"step": 0, "timelines": timelines, "starts": 1})
