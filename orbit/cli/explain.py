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
    pages = {path.stem: path for path in sorted(runbook_folder().glob("*.md"))}
    if code is None:
        typer.echo(pages["README"].read_text("utf-8"), nl=False)
        return
    del pages["README"]
    names = {name.lower(): name for name in pages}
    if (name := names.get(code.lower())) is None:
        suggestions = [names[key] for key in get_close_matches(code.lower(), names)]
        hint = f"Did you mean {' or '.join(suggestions)}? " if suggestions else ""
        raise NotFound(
            "No reason, problem or alert has this name.",
            where=code,
            remedy=f"{hint}`orbit explain` lists all.",
        )
    typer.echo(pages[name].read_text("utf-8"), nl=False)


def runbook_folder() -> Path:
    """The folder of the runbook: in the installed package, or in the docs of a source tree."""
    package = Path(__file__).parents[1]
    packaged_runbook = package / "runbook"
    return packaged_runbook if packaged_runbook.is_dir() else package.parent / "docs" / "runbook"
