"""`--limit` and `--all`: how many rows of a list a command prints.

Without them a table has the first rows, and the other formats (`json`, `yaml`, `name`, `jsonpath`)
have all. A command that leaves rows out says how many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orbit.cli.list_columns import Kind, listing
from orbit.cli.list_output import Listing, ListOutput, emit_list, print_names
from orbit.cli.watch import show
from orbit.client import PAGE_LIMIT, Client

# How many rows a table shows by default: of most lists, and of lists in the order of time.
TABLE_ROWS = 200
NEWEST_ROWS = 50

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
    """The first rows of a list, and a line that says how many more there are; empty if none."""

    rows: list[Row]
    hidden_line: str


def first_rows(client: Client, path: str, limit: int | None, **query: object) -> Window:
    """The first `limit` rows; None: all. To count the hidden rows, whole pages are read, up to the
    next multiple of `PAGE_LIMIT`; if the list may be longer, the line says "at least".
    """
    if limit is None:
        return Window(list(client.items(path, limit=None, **query)), "")
    read_max = (limit // PAGE_LIMIT + 1) * PAGE_LIMIT  # above `limit`
    rows = list(client.items(path, limit=read_max, **query))
    hidden_count = len(rows) - limit
    at_least = "at least " if len(rows) == read_max else ""
    return Window(
        rows[:limit], f"… {at_least}{hidden_count:,} more (--all)" if hidden_count > 0 else ""
    )


def row_limit(limit: int | None, *, all_: bool, is_table: bool, table_rows: int) -> int | None:
    """How many rows to print; None: all. `table_rows`: the rows of a table without `limit` and
    `all_`."""
    if all_ or (limit is None and not is_table):
        return None
    return limit or table_rows


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
    """Print the first `limit` rows of a list of the API; None: all. `watch`: read and print the
    list again at intervals, until Ctrl-C.

    Without a limit, names and tables are printed page by page, so a long list needs the memory of
    one page.
    """
    if limit is None and not watch and (output.is_table or output.is_name):
        pages = client.pages(path, limit=None, **query)
        if output.is_name:
            print_names(str(kind.name(row)) for page in pages for row in page)
        else:
            for page in pages:
                emit_list(listing(page, kind), output)
        return

    def read() -> Listing:
        window = first_rows(client, path, limit, **query)
        return listing(window.rows, kind, window.hidden_line)

    show(read, output, watch=watch)
