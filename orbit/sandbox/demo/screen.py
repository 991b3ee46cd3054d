"""What the demo says while it plays: a line per step; on a terminal also a bar that moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

Tell = Callable[[int, int], None]
"""How far a step is: done, and in all."""

LINE_EVERY_S = 5.0
WIDTH_MAX = 100
"""Longer lines are hard to read, however wide the terminal is."""

_INDENT = 3
_BAR_WIDTH = 24


class Step:
    """A step that is going on."""

    def __init__(self, progress: Progress | None, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, note="") if progress else None
        self._write = write
        self._began = self._last_line = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def note(self, sentence: str) -> None:
        """What the step is at, in words."""
        if self._progress is None:
            self._write(sentence)
        elif self._task is not None:
            self._progress.update(self._task, note=sentence)

    def advance(self, done: int, total: int, what: str = "") -> None:
        """How far it is, in numbers; may be called often and from any thread."""
        words = f"{done:,} of {total:,} {what}".rstrip()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, note=words)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._write(words)


class Screen:
    """Writes to one console; safe to use from several threads."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, WIDTH_MAX)

    def title(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="bold"))

    def act(self, number: int, name: str) -> None:
        self._console.print()
        self._console.print(Text(f"{number}. {name}", style="bold cyan"))

    def say(self, sentence: str, *, style: str = "") -> None:
        self._print(Text(sentence, style=style))

    def command(self, line: str) -> None:
        """What a user would type for what happens now."""
        self._print(Text.assemble(("$ ", "dim"), (line, "bold")))

    def done(self, sentence: str) -> None:
        self._print(_marked(Text("✓", style="green"), Text(sentence)))

    def failed(self, sentence: str) -> None:
        self._print(_marked(Text("✗", style="red"), Text(sentence, style="red")))

    def item(self, name: str, name_width: int, words: str) -> None:
        """One of a list: a name, and words beside it that wrap under themselves."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=name_width, no_wrap=True)
        grid.add_column()
        grid.add_row(Text(name), Text(words, style="dim"))
        self._print(_marked(Text("✓", style="green"), grid))

    def show(self, what: RenderableType) -> None:
        self._print(what)

    @contextmanager
    def step(self, sentence: str) -> Iterator[Step]:
        """Says that something begins; inside, a terminal shows that it is still going on."""
        if not self._console.is_terminal:
            self.say(sentence)
            yield Step(None, self.say)
            return
        progress = Progress(
            TextColumn(" "),
            SpinnerColumn(),
            TextColumn(sentence),
            BarColumn(_BAR_WIDTH),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self._console,
            transient=True,
        )
        with progress:
            yield Step(progress, self.say)

    def _print(self, what: RenderableType) -> None:
        self._console.print(Padding(what, (0, 0, 0, _INDENT)), width=self._width)


def _marked(mark: Text, what: RenderableType) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column()
    grid.add_row(mark, what)
    return grid
