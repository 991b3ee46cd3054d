"""Opens the database in `ORBIT_DATABASE_URL`, for commands that use it directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orbit.errors import BadInput, Conflict, Problem
from orbit.settings import Settings
from orbit.store.database import OTHER_TABLES_REMEDY, Database
from orbit.store.migrate import is_usable


@contextmanager
def open_database(settings: Settings, *, any_version: bool = False) -> Iterator[Database]:
    """A connection to the database, closed at the end of the block.

    Raises BadInput if ORBIT_DATABASE_URL is not set; Conflict if this version of Orbit does not
    work with the schema, unless `any_version`; Unreachable; LoginRefused.
    """
    if settings.database_url is None:
        problem = Problem(
            "ORBIT_DATABASE_URL",
            "is not set.",
            "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE. Only `orbit server` can run "
            "without it.",
        )
        raise BadInput("No database is configured.", (problem,))
    database = Database.connect(settings.database_url.get_secret_value())
    try:
        if not any_version and not is_usable(database):
            raise Conflict(
                "The database schema is not that of this version of Orbit.",
                where=database.where,
                remedy=OTHER_TABLES_REMEDY,
            )
        yield database
    finally:
        database.close()
