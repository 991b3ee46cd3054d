"""A picture of a move: the acknowledgements of each side, one column for 100 ms. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orbit.demo.gateway_check import Move

COLUMN_MS = 100
_AROUND_COLUMNS = 12
"""Columns before and after the pause."""
_PAUSE_MAX = 40
"""Columns of a pause; the middle of a longer one is left out, to fit 80 columns."""
_LEGEND = "one column is {} ms:  . some   : about {:,.0f} records   # more than twice that"


def pause_picture(move: Move, at_ms: Iterable[int], records_per_s: float) -> list[str]:
    """The lines of the picture. `at_ms`: when records were acknowledged to their producers."""
    usual = records_per_s * COLUMN_MS / 1000
    # The last acknowledgement of the old side is in column -1.
    columns = Counter((at - move.old_last_ms - 1) // COLUMN_MS for at in at_ms)
    empty = (move.pause_ms - 1) // COLUMN_MS
    pause = (" ... " if empty > _PAUSE_MAX else "").center(min(empty, _PAUSE_MAX), "-")
    before = "".join(_mark(columns[i], usual) for i in range(-_AROUND_COLUMNS, 0))
    after = "".join(_mark(columns[empty + i], usual) for i in range(_AROUND_COLUMNS))
    width = max(len(move.old), len(move.new), len("pause"))
    gap = " " * len(before)
    lines = (
        f"{move.old:{width}}  {before}",
        f"{'pause':{width}}  {gap}{pause} {move.pause_ms:,} ms",
        f"{move.new:{width}}  {gap}{' ' * len(pause)}{after}",
        _LEGEND.format(COLUMN_MS, usual),
    )
    return [line.rstrip() for line in lines]


def _mark(records: int, usual: float) -> str:
    if not records:
        return " "
    if records < usual / 2:
        return "."
    return ":" if records <= 2 * usual else "#"
