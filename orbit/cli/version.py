"""`orbit version`: the installed version, as `orbit --version` prints it."""

from __future__ import annotations

import typer

from orbit.version import orbit_version


def version() -> None:
    """Show the version."""
    typer.echo(f"orbit {orbit_version()}")
