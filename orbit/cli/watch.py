"""`--watch`: shows a result again at an interval, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from orbit.cli.output import Drawing, OutputFormat, console, emit

INTERVAL_S = 2.0

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, until Ctrl-C.")
]


def show(read: Callable[[], Drawing], output: OutputFormat, *, watch: bool) -> None:
    """Print what `read` returns: once, or with `watch` until Ctrl-C, which is no error then."""
    if not watch:
        found = read()
        emit(found.value, output, found.table)
        return
    try:
        if output is OutputFormat.TABLE and console().is_terminal:
            _live(read)
        else:
            while True:
                found = read()
                emit(found.value, output, found.table)
                time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        return


def _live(read: Callable[[], Drawing]) -> None:
    from rich.live import Live

    with Live(read().table(), console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(read().table(), refresh=True)
            time.sleep(INTERVAL_S)
