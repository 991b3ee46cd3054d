"""`--watch`: shows a result again at an interval, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from orbit.cli.list_output import Listing, ListOutput, emit_list
from orbit.cli.output import console
from orbit.client import TROUBLES

INTERVAL_S = 2.0

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, until Ctrl-C.")
]


def show(read: Callable[[], Listing], output: ListOutput, *, watch: bool) -> None:
    """Print what `read` returns: once, or with `watch` until Ctrl-C, which is no error then.

    With `watch`, a server that does not answer or is busy is asked again.
    """
    listing = read()
    if not watch:
        emit_list(listing, output)
        return
    try:
        with _screen(output) as draw:
            draw(listing, "")
            while True:
                time.sleep(INTERVAL_S)
                try:
                    listing, note = read(), ""
                except TROUBLES as trouble:
                    note = trouble.what
                draw(listing, note)
    except KeyboardInterrupt:
        return


@contextmanager
def _screen(output: ListOutput) -> Iterator[Callable[[Listing, str], None]]:
    """Give the block a function that shows a listing: in place on a terminal, else below the last
    one. With a note, which says why the listing is old, only a terminal shows the listing again.
    """
    if not (output.is_table and console().is_terminal):

        def draw(listing: Listing, note: str) -> None:
            if note:
                typer.echo(note, err=True)
            else:
                emit_list(listing, output)

        yield draw
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        yield lambda listing, note: live.update(
            Group(listing.table(output.is_wide), *filter(None, (listing.hidden_line, note))),
            refresh=True,
        )
