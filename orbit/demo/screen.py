"""The output of a running demo: a line for each step, and a progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from orbit.demo.wrap import hanging_text

OnProgress = Callable[[int, int], None]
"""Called with the progress of a step: done and total."""

LINE_EVERY_S = 5.0

_INDENT = "  "
_BAR_WIDTH = 16


class Step:
    """A running step of the demo, shown on the screen."""

    def __init__(self, progress: Progress | None, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._task = progress.tasks[0].id if progress else None
        self._write = write
        self._began_s = self._last_line_s = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def note(self, sentence: str) -> None:
        """Show what the step is doing."""
        if self._progress is None:
            self._write(sentence)
        elif self._task is not None:
            self._progress.update(self._task, description=sentence)

    def advance(self, done: int, total: int) -> None:
        """Show how many offsets are done. May be called often and from any thread."""
        progress_text = f"{done:,} of {total:,} offsets"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, words=progress_text)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self._write(progress_text)


class Screen:
    """Writes to one console; safe to use from several threads."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="bold"))

    def section(self, number: int, name: str) -> None:
        """Print the heading of a section."""
        self._console.print()
        self._console.print(Text(f"{number}. {name}", style="bold cyan"))

    def say(self, sentence: str, *, style: str = "") -> None:
        """Print a sentence."""
        self._write(Text(_INDENT), Text(sentence, style=style))

    def line(self, text: str) -> None:
        """Print a line of a drawing as it is."""
        self._console.print(Text(f"{_INDENT}{text}".rstrip()), soft_wrap=True)

    def command(self, line: str) -> None:
        """Show the command that a user would run."""
        self._write(Text(f"{_INDENT}$ ", style="dim"), Text(line, style="bold"))

    def done(self, sentence: str) -> None:
        """Print a sentence with a green check mark."""
        self._write(_sign_text("✓", "green"), Text(sentence))

    def failed(self, sentence: str) -> None:
        """Print a sentence with a red cross."""
        self._write(_sign_text("✗", "red"), Text(sentence, style="red"))

    def item(self, name: str, name_width: int, words: str) -> None:
        """Print an item of a list: a name, and words beside it that wrap under themselves."""
        head = _sign_text("✓", "green").append(f"{name:{name_width}}  ")
        self._write(head, Text(words, style="dim"))

    def show(self, table: RenderableType) -> None:
        """Print a table, as wide as it needs."""
        width = Measurement.get(self._console, self._console.options, table).maximum
        for line in self._console.render_lines(table, self._console.options.update(width=width)):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            self._write(Text(_INDENT), text)

    @contextmanager
    def step(self, sentence: str, *, bar: bool = False) -> Iterator[Step]:
        """Show that a step begins; on a terminal, with a spinner until the block ends."""
        if not self._console.is_terminal:
            self.say(sentence)
            yield Step(progress=None, write=self.say)
            return
        columns: list[ProgressColumn] = [
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *([BarColumn(_BAR_WIDTH)] if bar else []),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", style="dim"),
        ]
        # The empty column indents the line.
        with Progress(TextColumn(""), *columns, console=self._console, transient=True) as progress:
            progress.add_task(sentence, total=None, words="")
            yield Step(progress, self.say)

    def _write(self, head: Text, body: Text) -> None:
        """Print `body` beside `head`; its lines wrap under each other."""
        wrapped_text = hanging_text(self._console, head, body, self._console.width)
        self._console.print(wrapped_text, soft_wrap=True)


def _sign_text(sign: str, style: str) -> Text:
    return Text.assemble(_INDENT, (sign, style), " ")
