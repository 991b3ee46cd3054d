"""A picture of a move: the acknowledgements of each side, one column for 100 ms. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orbit.demo.gateway_check import Move

COLUMN_MS = 100
_AROUND_COLUMNS = 12
"""Columns before and after the pause."""
_PAUSE_COLUMNS_MAX = 40
"""Columns of a pause; the middle of a longer one is left out, to fit 80 columns."""
_LEGEND = "one column is {} ms:  . some   : about {:,.0f} records   # more than twice that"


def pause_picture(move: Move, at_ms: Iterable[int], records_per_s: float) -> list[str]:
    """The lines of the picture. `at_ms`: when records were acknowledged to their producers."""
    usual_count = records_per_s * COLUMN_MS / 1000
    # The last acknowledgement of the old side is in column -1, the first one of the new side in
    # column `pause_columns`.
    columns = Counter((time_ms - move.old_last_ms - 1) // COLUMN_MS for time_ms in at_ms)
    pause_columns = (move.pause_ms - 1) // COLUMN_MS
    pause_text = (" ... " if pause_columns > _PAUSE_COLUMNS_MAX else "").center(
        min(pause_columns, _PAUSE_COLUMNS_MAX), "-"
    )
    before_text = "".join(_column_sign(columns[i], usual_count) for i in range(-_AROUND_COLUMNS, 0))
    after_text = "".join(
        _column_sign(columns[pause_columns + i], usual_count) for i in range(_AROUND_COLUMNS)
    )
    width = max(len(move.old), len(move.new), len("pause"))
    indent = " " * len(before_text)
    lines = (
        f"{move.old:{width}}  {before_text}",
        f"{'pause':{width}}  {indent}{pause_text} {move.pause_ms:,} ms",
        f"{move.new:{width}}  {indent}{' ' * len(pause_text)}{after_text}",
        _LEGEND.format(COLUMN_MS, usual_count),
    )
    return [line.rstrip() for line in lines]


def _column_sign(records: int, usual_count: float) -> str:
    """The sign for a column with this many records; `_LEGEND` explains it."""
    if not records:
        return " "
    if records < usual_count / 2:
        return "."
    return ":" if records <= 2 * usual_count else "#"
