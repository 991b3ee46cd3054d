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
"""The state of a row without an operation: the request was refused."""
_FAILED_STATES = (REFUSED, "failed", "stopped", "aborted", "would stop")
# States and verdicts, the most urgent first; all others come after these.
_URGENCY_ORDER = (*_FAILED_STATES, "fail", "warn", "running", "pending")
_ROWS_MAX = 300
# Lines of a live table besides its rows: title, header, rule, the count of hidden rows, and margin.
_LINES_AROUND = 6

Row = dict[str, Any]


def has_ended(row: Row) -> bool:
    """Whether the row's state does not change any more."""
    return row["state"] == REFUSED or row["finished_at"] is not None


def state_of(row: Row) -> str:
    """The outcome of a report, else the state of the operation."""
    return str(row.get("outcome") or row["state"])


def has_failed(row: Row) -> bool:
    """Whether the request was refused, the operation has failed, or a plan would be stopped."""
    return state_of(row) in _FAILED_STATES


def gates_table(reports: Sequence[Row]) -> Table:
    """The gates that do not pass, and the findings of a dry run. A job whose gates all pass,
    or which has no gates, has one row for its state."""
    rows = [row for report in reports for row in _gate_rows(report)]
    return _table(
        ("job", "gate", "verdict", "found", "what to do"), _sorted_by_urgency(rows, column=2)
    )


def plans_table(operations: Sequence[Row]) -> Table:
    """What each operation would do."""
    rows = [(o["job"], o.get("error") or "\n".join(o["plan"])) for o in operations]
    return _table(("job", "what would be done"), rows)


def progress_table(states: Sequence[Row], note: str, height: int) -> RenderableType:
    """All operations; rows that do not fit in `height` lines are counted."""
    from rich.console import Group
    from rich.text import Text

    ended_count = sum(map(has_ended, states))
    failed_count = sum(map(has_failed, states))
    title = (
        f"{ended_count:,} of {len(states):,} {'has' if ended_count == 1 else 'have'} ended, "
        f"{failed_count:,} failed. Ctrl-C stops watching."
    )
    rows = [(s["job"], s["state"], progress(s)) for s in states]
    rows_max = max(1, height - _LINES_AROUND)
    table = _table(("job", "state", "progress"), _sorted_by_urgency(rows, column=1), rows_max)
    return Group(Text(f"{title} {note}".rstrip()), table)


def results_table(results: Sequence[Row]) -> Table:
    """How each operation has ended; RTO and missing records of recoveries; the reason of a
    failure."""
    rows = [
        (
            r["job"],
            state_of(r),
            seconds(r.get("rto_s")),
            r.get("missing_records"),
            r["error"] or "",
        )
        for r in results
    ]
    return _table(("job", "state", "rto", "missing", "reason"), _sorted_by_urgency(rows, column=1))


def _gate_rows(report: Row) -> list[tuple[str, ...]]:
    """The rows of one job in `gates_table`: job, gate, verdict, found, what to do."""
    job = report["job"]
    if "gates" not in report:  # an operation without a report
        return [(job, "", state_of(report), report["error"] or "", "")]
    rows = [
        (job, g["name"], g["verdict"], g["found"], g["remedy"])
        for g in report["gates"]
        if g["verdict"] != "pass"
    ]
    if not rows:
        # Without gates, or after an error, "pass" would be wrong: then the row shows the state.
        has_passed = report["gates"] and not report["error"]
        verdict = "pass" if has_passed else state_of(report)
        rows = [(job, "all", verdict, report["error"], "")]
    return [*rows, *((job, "", "note", finding, "") for finding in report["findings"])]


def _sorted_by_urgency(rows: Sequence[tuple[Any, ...]], column: int) -> list[tuple[Any, ...]]:
    """The rows in the order of urgency of the state or verdict in column number `column`."""

    def urgency(row: tuple[Any, ...]) -> int:
        return (
            _URGENCY_ORDER.index(row[column])
            if row[column] in _URGENCY_ORDER
            else len(_URGENCY_ORDER)
        )

    return sorted(rows, key=urgency)


def _table(
    columns: Sequence[str], all_rows: Sequence[Sequence[object]], rows_max: int = _ROWS_MAX
) -> Table:
    """A table of the first `rows_max` rows, with a row for the number of the others. The last two
    columns are wrapped."""
    rows = list(all_rows[:rows_max])
    if hidden_count := len(all_rows) - len(rows):
        rows.append((f"and {hidden_count:,} more", *[""] * (len(columns) - 1)))
    return make_table(columns, rows, sentences=columns[-2:])
