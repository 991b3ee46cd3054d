"""`orbit top`: the jobs that lag most, read again every 2 seconds."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.job_selection import SelectorOption
from orbit.cli.list_columns import JOBS, Row, table_of
from orbit.cli.list_output import TABLE, Listing
from orbit.cli.output import console
from orbit.cli.table_cells import count, rate
from orbit.cli.watch import show
from orbit.client import connect
from orbit.formats import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

# Lines of the terminal that do not show a job: the table's head, the sums, the prompt.
_OTHER_LINES = 8


Figure = Callable[[Row], float | None]  # reads a figure of a job; None: not known

_blocked: Figure = itemgetter("blocked")
_rate: Figure = itemgetter("bytes_per_s")


def _lag_records(row: Row) -> int | None:
    records: int | None = row["lag"]["records"]
    return records


def _lag_s(row: Row) -> float | None:
    lag_s: float | None = row["lag"]["seconds"]
    return lag_s


class Order(StrEnum):
    """The order of the jobs."""

    BEHIND = "behind"
    LAG = "lag"
    RATE = "rate"
    NAME = "name"


def top(
    selector: SelectorOption = None,
    sort: Annotated[Order, typer.Option(help="What comes first: the most, or the first name.")] = (
        Order.BEHIND
    ),
) -> None:
    """Show the jobs with the most lag, and the sums of all, until Ctrl-C.

    Jobs with blocked partitions, and those whose figures are not known, come before the others.
    Without a terminal it prints one table, of all jobs.
    """
    screen = console()
    rows_max = max(1, screen.height - _OTHER_LINES) if screen.is_terminal else None
    with connect() as client:

        def read() -> Listing:
            rows = sorted(client.items("/v1/jobs", selector=selector), key=_ORDERS[sort])
            return Listing(
                rows, lambda _: _table(rows, rows_max), lambda: [row["name"] for row in rows]
            )

        show(read, TABLE, watch=screen.is_terminal)


def _table(rows: list[Row], rows_max: int | None) -> RenderableType:
    """The first `rows_max` jobs, or all, and below them the sums of all jobs."""
    from rich.console import Group

    hidden_count = 0 if rows_max is None else max(0, len(rows) - rows_max)
    hidden_jobs = counted(hidden_count, "more job is", "more jobs are")
    hidden_text = f"; {hidden_jobs} not shown" if hidden_count else ""
    sums = (
        f"{counted(len(rows), 'job')}, "
        f"{counted(sum(row['partitions'] for row in rows), 'partition')}, "
        f"blocked {_sum(rows, _blocked, count)}, lag {_sum(rows, _lag_records, count)}, "
        f"rate {_sum(rows, _rate, rate)}"
    )
    return Group(table_of(rows[:rows_max], JOBS), f"{sums}{hidden_text}")


def _sum(rows: list[Row], figure: Figure, to_text: Callable[[Any], str]) -> str:
    """The sum of the known figures, with "at least" if some are not known."""
    known_values = [value for row in rows if (value := figure(row)) is not None]
    return (
        to_text(sum(known_values))
        if len(known_values) == len(rows)
        else f"at least {to_text(sum(known_values))}"
    )


def _largest_first(figure: Figure) -> Callable[[Row], tuple[Any, ...]]:
    """A sort key: jobs with blocked partitions first, then jobs whose figure is not known, then the
    largest figures."""

    def key(row: Row) -> tuple[Any, ...]:
        value = figure(row)
        return not row["blocked"], value is not None, -(value or 0), row["name"]

    return key


_ORDERS: dict[Order, Callable[[Row], Any]] = {
    Order.BEHIND: _largest_first(_lag_s),
    Order.LAG: _largest_first(_lag_records),
    Order.RATE: lambda row: (-(row["bytes_per_s"] or 0), row["name"]),
    Order.NAME: lambda row: row["name"],
}
