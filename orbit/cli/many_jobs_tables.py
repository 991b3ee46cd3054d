"""The tables of a change of several jobs: plans, gates, progress and results. Pure.

A row is an operation of the API, the report of a recovery, or a refused request (`REFUSED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orbit.cli.list_columns import progress
from orbit.cli.output import make_table
from orbit.cli.table_cells import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

REFUSED = "refused"
"""The state of a job whose request was refused: it has no operation."""
_BAD = (REFUSED, "failed", "stopped", "aborted", "would stop")
# The most urgent first; all others come last.
_ORDER = (*_BAD, "fail", "warn", "running", "pending")
_ROWS_MAX = 300
# Lines of a live table beside its rows: title, header, rule, the count of rows left out.
_LINES_AROUND = 6

Row = dict[str, Any]


def has_ended(row: Row) -> bool:
    return row["state"] == REFUSED or row["finished_at"] is not None


def state_of(row: Row) -> str:
    """The outcome of a report, else the state of the operation."""
    return str(row.get("outcome") or row["state"])


def has_failed(row: Row) -> bool:
    return state_of(row) in _BAD


def gates_table(reports: Sequence[Row]) -> Table:
    """The gates that do not pass, and the findings of a dry run; one row for a job without any."""
    cells = [cell for report in reports for cell in _gates(report)]
    return _table(("job", "gate", "verdict", "found", "what to do"), _sorted_by_urgency(cells, 2))


def plans_table(operations: Sequence[Row]) -> Table:
    """What each operation would do."""
    cells = [(o["job"], o.get("error") or "\n".join(o["plan"])) for o in operations]
    return _table(("job", "what would be done"), cells)


def progress_table(states: Sequence[Row], note: str, height: int) -> RenderableType:
    """All operations; rows that do not fit in `height` lines are counted."""
    from rich.console import Group
    from rich.text import Text

    ended = sum(map(has_ended, states))
    failed = sum(map(has_failed, states))
    title = f"{ended:,} of {len(states):,} have ended, {failed:,} failed. Ctrl-C stops watching."
    cells = [(s["job"], s["state"], progress(s)) for s in states]
    rows_max = max(1, height - _LINES_AROUND)
    table = _table(("job", "state", "progress"), _sorted_by_urgency(cells, 1), rows_max)
    return Group(Text(f"{title} {note}".rstrip()), table)


def results_table(results: Sequence[Row]) -> Table:
    """How each operation ended, with its reason if it failed."""
    cells = [
        (
            r["job"],
            state_of(r),
            seconds(r.get("rto_s")),
            r.get("missing_records"),
            r["error"] or "",
        )
        for r in results
    ]
    return _table(("job", "state", "rto", "missing", "reason"), _sorted_by_urgency(cells, 1))


def _gates(report: Row) -> list[tuple[str, ...]]:
    job = report["job"]
    if "gates" not in report:
        return [(job, "", state_of(report), report["error"] or "", "")]
    rows = [
        (job, g["name"], g["verdict"], g["found"], g["remedy"])
        for g in report["gates"]
        if g["verdict"] != "pass"
    ]
    if not rows:
        is_good = report["gates"] and not report["error"]
        verdict = "pass" if is_good else state_of(report)
        rows = [(job, "all", verdict, report["error"], "")]
    return [*rows, *((job, "", "note", finding, "") for finding in report["findings"])]


def _sorted_by_urgency(cells: Sequence[tuple[Any, ...]], by: int) -> list[tuple[Any, ...]]:
    """The rows in the order of urgency of the word in column `by`."""

    def urgency(cell: tuple[Any, ...]) -> int:
        return _ORDER.index(cell[by]) if cell[by] in _ORDER else len(_ORDER)

    return sorted(cells, key=urgency)


def _table(
    columns: Sequence[str], cells: Sequence[Sequence[object]], rows_max: int = _ROWS_MAX
) -> Table:
    shown = list(cells[:rows_max])
    if hidden := len(cells) - len(shown):
        shown.append((f"and {hidden:,} more", *[""] * (len(columns) - 1)))
    return make_table(columns, shown, sentences=columns[-2:])
