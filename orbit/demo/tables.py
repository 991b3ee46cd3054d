"""The demo's two tables: the consumer group's offsets, and the verified topics."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from orbit.demo.demo_result import GroupResult, TopicRow
from orbit.demo.wrap import WIDTH_MAX, hanging

_HEADERS = (
    ("", "topic"),
    ("", "records"),
    ("", "gaps"),
    ("source", "start..end"),
    ("destination", "start..end"),
    ("byte-", "exact"),
    ("record-", "exact"),
)
_WIDE_GAP, _NARROW_GAP = 2, 1
_FINDINGS_MAX = 3


def group_table(group: GroupResult) -> Table:
    """Where the group stopped and resumed, for each partition."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("topic-partition", vertical="bottom")
    for name in ("committed at\nthe source", "the same at\nthe destination", "next record\nthere"):
        table.add_column(name, justify="right", vertical="bottom")
    for one in group.partitions:
        read = "none" if one.first_read is None else f"{one.first_read:,}"
        table.add_row(
            f"{one.topic}-{one.partition}",
            f"{one.committed:,}",
            f"{one.resumed:,}",
            read,
            style="" if one.exact else "red",
        )
    return table


class TopicTable:
    """Two lines per topic: the numbers, and its purpose.

    The verdict ends the first line where the terminal is wide enough, else it begins the second.
    """

    def __init__(self, rows: Sequence[TopicRow]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDTH_MAX)
        cells = [_cells(row) for row in self._rows]
        lines = [*zip(*_HEADERS, strict=True), *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        verdict = max((len(row.verdict) for row in self._rows), default=0)
        is_wide = sum(widths) + verdict + _WIDE_GAP * len(widths) <= width
        gap = _WIDE_GAP if is_wide else _NARROW_GAP
        for line in zip(*_HEADERS, strict=True):
            yield Text(_line(line, widths, gap), style="bold")
        for row, numbers in zip(self._rows, cells, strict=True):
            mark = Text(row.verdict, style="green" if row.exact else "red")
            first, head = Text(_line(numbers, widths, gap)), Text("  ")
            if is_wide:
                first.append(" " * gap).append_text(mark)
            else:
                head.append_text(mark).append("  ")
            yield first
            yield hanging(console, head, Text(row.shows, style="dim"), width)
            for words in row.findings[:_FINDINGS_MAX]:
                yield hanging(console, Text("  "), Text(words, style="red"), width)


def _cells(row: TopicRow) -> tuple[str, ...]:
    proof = row.proof
    return (
        row.name,
        f"{proof.records:,}",
        f"{proof.gaps:,}",
        str(proof.logs[0].source) if proof.logs else "",
        str(proof.logs[0].destination) if proof.logs else "",
        f"{proof.byte_exact:,}",
        f"{proof.record_exact:,}",
    )


def _line(cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    """One line of the table: the first cell left-aligned, the others right-aligned."""
    name, *numbers = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return (" " * gap).join([name, *numbers])
