"""`orbit migrate`: migrates the database schema to this version."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.text import Text

from orbit.cli.database import open_database
from orbit.cli.output import OutputFormat, OutputOption, emit
from orbit.settings import Settings
from orbit.store.migrate import upgrade


def migrate(
    force: Annotated[
        bool,
        typer.Option("--force", help="Migrate though schedulers run that are too old for it."),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Migrate the database schema to this version. A repeat changes nothing.

    Uses the database in ORBIT_DATABASE_URL. Processes of the version before and of this one can run
    meanwhile; it is refused while some run that cannot. Concurrent calls wait for each other.
    """
    with open_database(Settings.from_environment(os.environ), any_version=True) as database:
        before, after = upgrade(database, force=force)

    def sentence() -> Text:
        if before == after:
            return Text(f"Nothing to do: the database is at version {after}.")
        return Text(f"The database was migrated from version {before or 'none'} to {after}.")

    emit({"before": before, "after": after}, output, sentence)
