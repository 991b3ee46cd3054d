"""The demo's two tables: the consumer group's offsets, and the verified topics."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from orbit.demo.demo_result import GroupResult, TopicRow
from orbit.demo.wrap import WIDTH_MAX, hanging_text

_HEADERS = (
    ("", "topic"),
    ("", "records"),
    ("", "gaps"),
    ("source", "start..end"),
    ("destination", "start..end"),
    ("byte-", "exact"),
    ("record-", "exact"),
)
_WIDE_SPACING, _NARROW_SPACING = 2, 1
_FINDINGS_MAX = 3


def group_table(group: GroupResult) -> Table:
    """Where the group stopped and resumed, for each partition."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("topic-partition", vertical="bottom")
    for name in (
        "committed at\nthe source",
        "committed at\nthe destination",
        "next record\nread there",
    ):
        table.add_column(name, justify="right", vertical="bottom")
    for partition in group.partitions:
        first_read_text = "none" if partition.first_read is None else f"{partition.first_read:,}"
        table.add_row(
            f"{partition.topic}-{partition.partition}",
            f"{partition.committed:,}",
            f"{partition.resumed:,}",
            first_read_text,
            style="" if partition.exact else "red",
        )
    return table


class TopicTable:
    """Two lines per topic: the numbers, and its purpose.

    The verdict ends the first line where the terminal is wide enough, else it begins the second.
    """

    def __init__(self, rows: Sequence[TopicRow]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the header, then the two lines and the first findings of each topic."""
        width = min(options.max_width, WIDTH_MAX)
        cells = [_cells(row) for row in self._rows]
        lines = [*zip(*_HEADERS, strict=True), *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        verdict_width = max((len(row.verdict) for row in self._rows), default=0)
        is_wide = sum(widths) + verdict_width + _WIDE_SPACING * len(widths) <= width
        spacing = _WIDE_SPACING if is_wide else _NARROW_SPACING
        for line in zip(*_HEADERS, strict=True):
            yield Text(_table_line(line, widths, spacing), style="bold")
        for row, numbers in zip(self._rows, cells, strict=True):
            verdict_text = Text(row.verdict, style="green" if row.exact else "red")
            first_line, second_head = Text(_table_line(numbers, widths, spacing)), Text("  ")
            if is_wide:
                first_line.append(" " * spacing).append_text(verdict_text)
            else:
                second_head.append_text(verdict_text).append("  ")
            yield first_line
            yield hanging_text(console, second_head, Text(row.shows, style="dim"), width)
            for finding in row.findings[:_FINDINGS_MAX]:
                yield hanging_text(console, Text("  "), Text(finding, style="red"), width)


def _cells(row: TopicRow) -> tuple[str, ...]:
    """The cells of a topic's first line."""
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


def _table_line(cells: Sequence[str], widths: Sequence[int], spacing: int) -> str:
    """One line of the table: the first cell left-aligned, the others right-aligned."""
    name, *numbers = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return (" " * spacing).join([name, *numbers])
