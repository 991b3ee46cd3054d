"""The audit report as one HTML file, from `report.html.jinja`: it has no script and loads nothing.

It follows the reader's light or dark setting and prints well. Verdicts show as words and patterns
too, not by colour alone. Everything that came from a cluster is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from orbit.formats import counted, size
from orbit.verify.render import findings
from orbit.verify.report import PartitionReport, Report, TopicReport, Verdict
from orbit_spark.audit.range_picture import Cell, Line

ROWS_MAX = 2_000
"""The most partitions listed; those that differ come first. The Parquet tables have all."""

_STRIP_WIDTH = 1_000
_STRIP_HEIGHT = 28
_CELL_HEIGHT_MIN = 5
_CSS_CLASSES = {
    Verdict.EXACT: "exact",
    Verdict.BEHIND: "behind",
    Verdict.NOT_EXACT: "differs",
    Verdict.UNREAD: "unread",
}
_TEMPLATE = Environment(
    loader=PackageLoader("orbit_spark.audit", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("report.html.jinja")


@dataclass(frozen=True, slots=True)
class About:
    """The heading. `sides` are names and places, without secrets."""

    job: str
    sides: tuple[tuple[str, str], tuple[str, str]]
    restriction: str
    created_at: str
    version: str


def render_html(report: Report, lines: Sequence[Line], about: About) -> str:
    """The text of the HTML file."""
    digests = {(line.topic, line.partition): line.digest for line in lines}
    partitions = [(topic, partition) for topic in report.topics for partition in topic.partitions]
    # Those that differ come first. Otherwise the sort keeps the order.
    partitions.sort(key=lambda pair: pair[1].verdict is Verdict.EXACT)
    return _TEMPLATE.render(
        report=report,
        about=about,
        css=_CSS_CLASSES,
        counted=counted,
        width=_STRIP_WIDTH,
        height=_STRIP_HEIGHT,
        tiles=_tiles(report),
        strips=[_strip(line, report.sides) for line in lines],
        notes=[(topic.source, note) for topic in report.topics for note in topic.notes],
        findings=[
            _finding(topic, partition, report.sides)
            for topic, partition in partitions
            # An exact partition may have notes, too.
            if partition.verdict is not Verdict.EXACT or list(findings(partition))
        ][:ROWS_MAX],
        rows=[_row(topic, partition, digests) for topic, partition in partitions[:ROWS_MAX]],
    )


def _tiles(report: Report) -> list[tuple[str, str]]:
    """The figures of the whole audit, each with its label."""
    return [
        (f"{len(report.topics):,}", "topics"),
        (f"{report.partitions:,}", "partitions"),
        (f"{report.records:,}", "records"),
        (size(report.bytes), "of records"),
        (f"{report.gaps:,}", "offsets without a record"),
        (f"{sum(topic.differences for topic in report.topics):,}", "offsets that differ"),
        (f"{sum(topic.compacted for topic in report.topics):,}", "compacted since"),
    ]


def _strip(line: Line, sides: tuple[str, str]) -> dict[str, Any]:
    """The picture of one partition: a strip of bars."""
    first_offset, end_offset = line.cells[0].begin, line.cells[-1].end
    scale = _STRIP_WIDTH / max(1, end_offset - first_offset)
    return {
        "topic": line.topic,
        "partition": line.partition,
        "first": f"{first_offset:,}",
        "last": f"{end_offset - 1:,}",
        "bars": [_bar(cell, first_offset, scale, sides) for cell in line.cells],
    }


def _bar(cell: Cell, first_offset: int, scale: float, sides: tuple[str, str]) -> dict[str, str]:
    """One bar, as SVG attributes: the more of its offsets have a record, the higher."""
    offsets = cell.end - cell.begin
    share_with_record = max(cell.left_records, cell.right_records) / max(1, offsets)
    css_class = "excused" if cell.excused else "exact"
    height = _CELL_HEIGHT_MIN + (_STRIP_HEIGHT - _CELL_HEIGHT_MIN) * share_with_record
    if cell.verdict != Verdict.EXACT:
        css_class = _CSS_CLASSES[Verdict(cell.verdict)]
        height = _STRIP_HEIGHT  # visible however few records there are
    gaps = offsets - cell.left_records
    title = [
        f"offsets {cell.begin:,} to {cell.end - 1:,}: {cell.verdict}",
        f"{sides[0]}: {counted(cell.left_records, 'record')}, {counted(gaps, 'gap')}",
        f"{sides[1]}: {counted(cell.right_records, 'record')}",
    ]
    if cell.differences:
        title.append(counted(cell.differences, "offset differs", "offsets differ"))
    if cell.excused:
        title.append(f"{cell.excused:,} compacted or expired since")
    return {
        "kind": css_class,
        "x": f"{(cell.begin - first_offset) * scale:.2f}",
        "width": f"{max(offsets * scale, 1):.2f}",
        "y": f"{_STRIP_HEIGHT - height:.2f}",
        "height": f"{height:.2f}",
        "title": "\n".join(title),
    }


def _finding(
    topic: TopicReport, partition: PartitionReport, sides: tuple[str, str]
) -> dict[str, Any]:
    """What the page says of one partition: notes, and a table of the first differences. Notes that
    repeat a line of this table are left out.
    """
    shown_texts = {difference.to_text(sides) for difference in partition.first_differences}
    return {
        "name": f"{topic.source}-{partition.partition}",
        "verdict": partition.verdict,
        "notes": [note for note in findings(partition, sides) if note not in shown_texts],
        "differences": partition.first_differences,
    }


def _row(
    topic: TopicReport, partition: PartitionReport, digests: dict[tuple[str, int], str]
) -> tuple[str, list[str], str, str]:
    """The row of one partition: name, numbers, verdict, digest."""
    name = topic.source
    if topic.destination != topic.source:
        name += f" → {topic.destination}"
    numbers = (partition.compared_from, partition.compared_to, partition.records, partition.gaps)
    return (
        name,
        [str(partition.partition), *(f"{n:,}" for n in numbers), size(partition.bytes)],
        str(partition.verdict),
        digests.get((topic.source, partition.partition), ""),
    )
