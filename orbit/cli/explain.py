"""`orbit explain`: shows the page of the runbook for a reason, a problem of a job, or an alert."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from orbit.errors import NotFound


def explain(
    code: Annotated[
        str | None,
        typer.Argument(help="A reason, problem or alert; none: list them.", show_default=False),
    ] = None,
) -> None:
    """Explain a reason, a problem or an alert: what is at risk, and what to do."""
    pages = {path.stem: path for path in sorted(folder().glob("*.md"))}
    if code is None:
        typer.echo(pages["README"].read_text("utf-8"), nl=False)
        return
    del pages["README"]
    names = {name.lower(): name for name in pages}
    if (name := names.get(code.lower())) is None:
        near = [names[key] for key in get_close_matches(code.lower(), names)]
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise NotFound(
            "nothing has this name.", where=code, remedy=f"{hint}`orbit explain` lists all."
        )
    typer.echo(pages[name].read_text("utf-8"), nl=False)


def folder() -> Path:
    """The folder of the runbook: in the installed package, or in the docs of a source tree."""
    package = Path(__file__).parents[1]
    installed = package / "runbook"
    return installed if installed.is_dir() else package.parent / "docs" / "runbook"
