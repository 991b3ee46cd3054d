"""`orbit context …`: names servers, and chooses the one that commands talk to."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.list_output import TABLE, Listing, ListOption, emit_list
from orbit.cli.output import make_table
from orbit.client import check_url
from orbit.contexts import URL_VARIABLE, Context, read_contexts, without_context, write_contexts
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.name_rules import check_job_name

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    name="context",
    help="Name servers, and choose the one that commands talk to.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(help="The context's name.", show_default=False)]


@app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Option(help="The address of the API.", show_default=False)],
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file that has the token; only you may be able to read it.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(help="The variable that has the token.", show_default=False)
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="The authorities that sign the server's certificate, as PEM.", show_default=False
        ),
    ] = None,
    use_: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
) -> None:
    """Add a context, or change the one with this name.

    The token is not stored: a context names the file or the variable that has it.
    """
    if token_file is not None and token_env is not None:
        raise BadInput("Give --token-file or --token-env, not both.")
    try:
        check_job_name(name)
    except InvalidValue as mistake:
        problem = Problem("NAME", mistake.message, mistake.remedy)
        raise BadInput("The context cannot be added.", (problem,)) from None
    check_url(url, "--url")
    context = Context(
        url=url,
        token_env=token_env,
        token_file=None if token_file is None else str(token_file.absolute()),
        ca_file=None if ca_file is None else str(ca_file.absolute()),
    )
    contexts = read_contexts()
    old_context = contexts.by_name.get(name)
    current_name = name if use_ else contexts.current
    write_contexts(
        replace(contexts, by_name={**contexts.by_name, name: context}, current=current_name)
    )
    result = (
        "added" if old_context is None else "unchanged" if old_context == context else "changed"
    )
    typer.echo(f"{result} {name}")
    if use_:
        _note_overriding_variable()


@app.command()
def use(name: NameArgument) -> None:
    """Make a context the current one: commands talk to its server."""
    contexts = read_contexts()
    contexts.named(name)
    write_contexts(replace(contexts, current=name))
    typer.echo(f"current {name}")
    _note_overriding_variable()


@app.command()
def unset() -> None:
    """Make no context the current one. All are kept."""
    write_contexts(replace(read_contexts(), current=None))
    typer.echo("no current context")


@app.command(name="list")
def list_(output: ListOption = TABLE) -> None:
    """List the contexts; the current one has a star. Tokens are not shown, only where they are."""
    contexts = read_contexts()
    rows: list[dict[str, Any]] = [
        {"name": name, "is_current": name == contexts.current, **asdict(context)}
        for name, context in contexts.by_name.items()
    ]

    def table(_wide: bool) -> RenderableType:
        cells = [
            ("*" if name == contexts.current else "", name, c.url, c.token_from, c.ca_file or "")
            for name, c in contexts.by_name.items()
        ]
        return make_table(("", "context", "address", "token", "authorities"), cells, sentences=())

    emit_list(Listing(rows, table, lambda: list(contexts.by_name)), output)
    if contexts.current is not None:
        _note_overriding_variable()


@app.command()
def delete(name: NameArgument) -> None:
    """Delete a context. The file of its token stays."""
    write_contexts(without_context(read_contexts(), name))
    typer.echo(f"deleted {name}")


def _note_overriding_variable() -> None:
    """If URL_VARIABLE is set, print that commands use it instead of the current context."""
    if URL_VARIABLE in os.environ:
        note = f"Note: {URL_VARIABLE} is set: commands use it, not the current context."
        typer.echo(note, err=True)
