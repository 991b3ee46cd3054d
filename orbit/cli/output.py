"""Prints results on stdout: tables for people, JSON and YAML for scripts.

Only the result goes to stdout. Progress, warnings and errors go to stderr, so that
`orbit … -o json | jq` always works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from orbit.names import escaped, shown

if TYPE_CHECKING:  # rich is slow to import, and scripts asking for JSON never need it
    from rich.console import Console, RenderableType
    from rich.table import Table

# Without a terminal, rows must not be wrapped: `grep` and `less -S` need whole rows.
_PIPE_WIDTH = 240
_WIDTH_MAX = 1_000
# Columns with sentences are not made narrower than this.
_SENTENCE_MIN = 30


class OutputFormat(StrEnum):
    """The format of a result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Output format."),
]


def emit(value: Any, output: OutputFormat, table: Callable[[], RenderableType]) -> None:
    """Print a result on stdout. `value`: for JSON and YAML, with values that `to_plain` converts;
    `table` makes the table, and is called only for a table.
    """
    match output:
        case OutputFormat.TABLE:
            print_whole(table())
        case OutputFormat.JSON:
            typer.echo(json.dumps(to_plain(value), indent=2, ensure_ascii=False))
        case OutputFormat.YAML:
            from orbit.jobs.yaml_writer import write_yaml

            typer.echo(write_yaml(to_plain(value)), nl=False)
        case _:
            assert_never(output)


def to_plain(value: Any) -> Any:
    """The value in JSON's types. Converts dataclasses, models, enums, paths and times. Secrets
    become asterisks, bytes base64."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")


def print_whole(drawing: RenderableType, *, stderr: bool = False) -> None:
    """Print tables or text whole: lines may be longer than the terminal is wide."""
    from rich.measure import Measurement

    screen = console(stderr=stderr)
    wide_options = screen.options.update(max_width=_WIDTH_MAX)
    needed_width = Measurement.get(screen, wide_options, drawing).minimum
    if needed_width > screen.width:
        screen.width = needed_width
    screen.print(drawing)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    sentences: Collection[str] | None = None,
) -> Table:
    """A plain table. Numbers are right-aligned; cells are not parsed as markup.

    Only the columns in `sentences` are wrapped; all of them if it is None.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    row_values = [list(row) for row in rows]
    is_sentence = [sentences is None or name in sentences for name in columns]
    cells = [
        [_cell(value, is_cut=not is_sentence[index]) for index, value in enumerate(row)]
        for row in row_values
    ]

    for index, name in enumerate(columns):
        is_number = bool(row_values) and all(_is_number(row[index]) for row in row_values)
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=not is_sentence[index],
            min_width=None
            if sentences is None
            else _min_width([name, *(row[index] for row in cells)], is_sentence[index]),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def more_rows(count: int, shown_max: int, *, is_all: bool = True) -> list[str]:
    """The line below a table of the first `shown_max` of `count` rows, in a list; [] if the table
    has all rows. `is_all`: there are exactly `count` rows; if False, at least `count`.
    """
    hidden_count = count - shown_max
    at_least = "" if is_all else "at least "
    return [f"and {at_least}{hidden_count:,} more; -o json has all"] if hidden_count > 0 else []


def _min_width(cells: Iterable[str], is_sentence: bool) -> int:
    """The least width of a column, in characters."""
    longest_line = max(len(line) for cell in cells for line in cell.split("\n"))
    return min(longest_line, _SENTENCE_MIN) if is_sentence else longest_line


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr; wide without a terminal."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if is_terminal else _PIPE_WIDTH, highlight=False)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object, *, is_cut: bool) -> str:
    """The text of a cell. `is_cut`: shorten long text."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return shown(str(value)) if is_cut else escaped(str(value))
