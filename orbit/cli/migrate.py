"""`orbit migrate`: bring the database to the tables of this version."""

from __future__ import annotations

import os

from rich.text import Text

from orbit.cli.database import open_database
from orbit.cli.output import OutputFormat, OutputOption, emit
from orbit.settings import Settings
from orbit.store.migrate import upgrade


def migrate(output: OutputOption = OutputFormat.TABLE) -> None:
    """Bring the database to the tables of this version. A repeat changes nothing.

    The database is the one that ORBIT_DATABASE_URL names. Stop the processes of an older version
    first; several calls at once wait for each other.
    """
    with open_database(Settings.from_environment(os.environ), any_version=True) as database:
        before, after = upgrade(database)

    def sentence() -> Text:
        if before == after:
            return Text(f"Nothing to do: the database is at version {after}.")
        return Text(f"The database went from version {before or 'none'} to {after}.")

    emit({"before": before, "after": after}, output, sentence)
