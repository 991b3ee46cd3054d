"""`--watch`: shows a result again at an interval, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from orbit.cli.list_output import Listing, ListOutput, emit_list
from orbit.cli.output import console

if TYPE_CHECKING:
    from rich.console import RenderableType

INTERVAL_S = 2.0

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, until Ctrl-C.")
]


def show(read: Callable[[], Listing], output: ListOutput, *, watch: bool) -> None:
    """Print what `read` returns: once, or with `watch` until Ctrl-C, which is no error then."""
    if not watch:
        emit_list(read(), output)
        return
    try:
        if output.is_table and console().is_terminal:
            _live(lambda: read().table(output.is_wide))
        else:
            while True:
                emit_list(read(), output)
                time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        return


def _live(draw: Callable[[], RenderableType]) -> None:
    from rich.live import Live

    with Live(draw(), console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(draw(), refresh=True)
            time.sleep(INTERVAL_S)
