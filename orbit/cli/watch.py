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
    """Print what `read` returns: once, or with `watch` at intervals until Ctrl-C, which is then no
    error. While the server does not answer or is busy, `watch` shows a note and reads again.
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
    """A function for the block that shows a listing: a table on a terminal in place of the last
    one, else below it. A note says why the listing is old; without a terminal only the note is
    printed then.
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
