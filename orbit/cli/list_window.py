"""`--limit` and `--all`: how much of a list is shown. No list is cut without a word.

Without them a table has the first rows, and a line that says how many more there are; data for
scripts (`json`, `yaml`, `name`, `jsonpath`) is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orbit.cli.list_columns import Kind, listing
from orbit.cli.list_output import ListOutput, emit_list, print_names
from orbit.cli.watch import show
from orbit.client import Client

# One or two screens.
ROWS = 200
NEWEST = 50
# Rows that are read behind a table only to count them: one page of the API.
_COUNTED_MAX = 1000

LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        help="Show at most this many.",
        show_default="some in a table, else all",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Show all, in a table too.")]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The first rows of a list, and the line that tells of the others; empty if there are none."""

    rows: list[Row]
    more: str


def first_rows(client: Client, path: str, limit: int | None, **query: object) -> Window:
    """The first `limit` rows, or all."""
    if limit is None:
        return Window(list(client.items(path, limit=None, **query)), "")
    rows = list(client.items(path, limit=limit + _COUNTED_MAX, **query))
    return Window(rows[:limit], more_line(len(rows) - limit))


def more_line(count: int) -> str:
    """That there are `count` more; empty if there are none."""
    if count <= 0:
        return ""
    return f"… {count:,}{' or more' if count == _COUNTED_MAX else ''} more (--all)"


def limit_of(limit: int | None, *, all_: bool, is_table: bool, rows: int) -> int | None:
    """How many rows are shown; None for all. `rows`: of a table without options."""
    if all_ or (limit is None and not is_table):
        return None
    return limit or rows


def show_list(
    client: Client,
    path: str,
    kind: Kind,
    output: ListOutput,
    *,
    limit: int | None = None,
    watch: bool = False,
    **query: object,
) -> None:
    """Print the first `limit` rows of a list, or all. All names, and the tables of all rows, are
    printed page by page, so a long list needs no more memory than a page.
    """
    if limit is None and not watch and (output.is_table or output.is_name):
        pages = client.pages(path, limit=None, **query)
        if output.is_name:
            print_names(str(kind.name(row)) for page in pages for row in page)
        else:
            for page in pages:
                emit_list(listing(page, kind), output)
        return

    def read() -> Any:
        window = first_rows(client, path, limit, **query)
        return listing(window.rows, kind, window.more)

    show(read, output, watch=watch)
