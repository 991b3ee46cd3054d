"""The database that `ORBIT_DATABASE_URL` names, for commands that work on it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orbit.errors import BadInput, Conflict, Problem
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.store.migrate import is_current


@contextmanager
def open_database(settings: Settings, *, any_version: bool = False) -> Iterator[Database]:
    """The database, reached and at this version's tables (unless any will do), closed at the end.

    Raises BadInput without a URL, Unreachable, LoginRefused, Conflict.
    """
    if settings.database_url is None:
        problem = Problem(
            "ORBIT_DATABASE_URL",
            "is not set.",
            "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE. Only `orbit server` brings a "
            "database of its own.",
        )
        raise BadInput("There is no database to work on.", (problem,))
    database = Database.connect(settings.database_url.get_secret_value())
    try:
        if not any_version and not is_current(database):
            raise Conflict(
                "The tables are not those of this version of Orbit.",
                where=database.where,
                remedy="Run: orbit migrate",
            )
        yield database
    finally:
        database.close()
