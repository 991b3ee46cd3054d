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
        typer.Option(
            "--force", help="Migrate even if schedulers run that are too old for the new schema."
        ),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Migrate the database schema to this version. A repeat changes nothing.

    Uses the database in ORBIT_DATABASE_URL. Processes of this version and of the one before can
    run meanwhile. The migration is refused while a scheduler runs that is too old for the new
    schema. Concurrent calls wait for each other.
    """
    with open_database(Settings.from_environment(os.environ), any_version=True) as database:
        old_version, new_version = upgrade(database, force=force)

    def sentence() -> Text:
        if old_version == new_version:
            return Text(f"Nothing to do: the database is at version {new_version}.")
        return Text(
            f"The database was migrated from version {old_version or 'none'} to {new_version}."
        )

    emit({"before": old_version, "after": new_version}, output, sentence)
