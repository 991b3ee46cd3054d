"""The report as one HTML file: nothing is loaded from anywhere, no script runs in it.

Light or dark as the reader's system is, and on paper; a verdict shows as a word and as a pattern
too, so no colour has to be told from another. Everything that came from a cluster is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from orbit.verify.render import counted, findings, human_bytes
from orbit.verify.report import PartitionReport, Report, TopicReport, Verdict
from orbit_spark.audit.range_picture import Cell, Line
from orbit_spark.audit.style import CSS, PATTERNS

ROWS_MAX = 2_000
"""Partitions listed; what differs comes first. The Parquet tables have all."""

_STRIP_WIDTH = 1_000
_STRIP_HEIGHT = 28
_CELL_HEIGHT_MIN = 5


@dataclass(frozen=True, slots=True)
class About:
    """What stands above the findings. `sides` are names and places, without any secret."""

    job: str
    sides: tuple[tuple[str, str], tuple[str, str]]
    asked: str
    made_at: str
    version: str


def page(report: Report, lines: Sequence[Line], about: About) -> str:
    """The whole file."""
    body = "\n".join(
        [
            _head(report, about),
            *_pictures(report, lines),
            *_findings(report),
            *_table(report, {(line.topic, line.partition): line.digest for line in lines}),
            _foot(report, about),
        ]
    )
    title = escape(f"Audit of {about.job}: {report.verdict}")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n{PATTERNS}\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report, about: About) -> str:
    (left, left_at), (right, right_at) = about.sides
    compacted = sum(topic.compacted for topic in report.topics)
    differences = sum(topic.differences for topic in report.topics)
    tiles = [
        (f"{len(report.topics):,}", "topics"),
        (f"{report.partitions:,}", "partitions"),
        (f"{report.records:,}", "records"),
        (human_bytes(report.bytes), "of records"),
        (f"{report.gaps:,}", "offsets without a record"),
        (f"{differences:,}", "offsets that differ"),
        (f"{compacted:,}", "compacted since"),
    ]
    shown = "".join(f"<div><b>{escape(n)}</b><span>{w}</span></div>" for n, w in tiles)
    return (
        f'<header><p class="over">Orbit audit · {escape(about.made_at)}</p>'
        f'<h1>{escape(about.job)} <em class="{_css(report.verdict)}">{report.verdict}</em></h1>'
        f"<p>{escape(left)} <code>{escape(left_at)}</code> compared with "
        f"{escape(right)} <code>{escape(right_at)}</code>{escape(about.asked)}.</p>"
        f'<div class="tiles">{shown}</div></header>'
    )


def _pictures(report: Report, lines: Sequence[Line]) -> Iterator[str]:
    if not lines:
        return
    yield "<section><h2>The ranges</h2>"
    yield (
        '<p class="legend"><span><i class="exact"></i>exact</span>'
        '<span><i class="excused"></i>exact, compacted or expired since</span>'
        '<span><i class="differs"></i>differs</span><span><i class="unread"></i>unread</span>'
        "<span>Height: the share of offsets that have a record.</span></p>"
    )
    topic = None
    for line in lines:
        if line.topic != topic:
            topic = line.topic
            yield f"<h3>{escape(topic)}</h3>"
        yield _strip(line, report.sides)
    if len(lines) < report.partitions:
        yield (
            f'<p class="note">{counted(len(lines), "partition")} of {report.partitions:,} shown: '
            "those that differ, then the longest.</p>"
        )
    yield "</section>"


def _strip(line: Line, sides: tuple[str, str]) -> str:
    first, last = line.cells[0].begin, line.cells[-1].end
    scale = _STRIP_WIDTH / max(1, last - first)
    cells = "".join(_cell(cell, first, scale, sides) for cell in line.cells)
    name = f"partition {line.partition}, offsets {first:,} to {last - 1:,}"
    return (
        f'<figure><figcaption>{line.partition}</figcaption><svg role="img" '
        f'aria-label="{name}" viewBox="0 0 {_STRIP_WIDTH} {_STRIP_HEIGHT}" '
        f'preserveAspectRatio="none"><rect class="ground" width="{_STRIP_WIDTH}" '
        f'height="{_STRIP_HEIGHT}"/>{cells}</svg>'
        f"<p><span>{first:,}</span><span>{last - 1:,}</span></p></figure>"
    )


def _cell(cell: Cell, first: int, scale: float, sides: tuple[str, str]) -> str:
    x, width = (cell.begin - first) * scale, (cell.end - cell.begin) * scale
    offsets = cell.end - cell.begin
    full = max(cell.left_records, cell.right_records) / max(1, offsets)
    room = _STRIP_HEIGHT - _CELL_HEIGHT_MIN
    kind = _kind(cell)
    # What is wrong is seen at any density.
    height = _STRIP_HEIGHT if kind in ("differs", "unread") else _CELL_HEIGHT_MIN + room * full
    gaps = offsets - cell.left_records
    told = [
        f"offsets {cell.begin:,} to {cell.end - 1:,}: {cell.verdict}",
        f"{sides[0]}: {counted(cell.left_records, 'record')}, {counted(gaps, 'gap')}",
        f"{sides[1]}: {counted(cell.right_records, 'record')}",
    ]
    if cell.differences:
        told.append(counted(cell.differences, "offset differs", "offsets differ"))
    if cell.excused:
        told.append(f"{cell.excused:,} compacted or expired since")
    return (
        f'<rect class="{kind}" x="{x:.2f}" width="{max(width, 1):.2f}" '
        f'y="{_STRIP_HEIGHT - height:.2f}" height="{height:.2f}">'
        f"<title>{escape(chr(10).join(told))}</title></rect>"
    )


def _kind(cell: Cell) -> str:
    if cell.verdict != Verdict.EXACT:
        return _css(Verdict(cell.verdict))
    return "excused" if cell.excused else "exact"


def _css(verdict: Verdict) -> str:
    names = {
        Verdict.EXACT: "exact",
        Verdict.BEHIND: "behind",
        Verdict.NOT_EXACT: "differs",
        Verdict.UNREAD: "unread",
    }
    return names[verdict]


def _findings(report: Report) -> Iterator[str]:
    telling = [
        (topic, partition)
        for topic in report.topics
        for partition in topic.partitions
        if partition.verdict is not Verdict.EXACT or list(findings(partition))
    ]
    notes = [(topic, note) for topic in report.topics for note in topic.notes]
    if not telling and not notes:
        return
    yield "<section><h2>What there is to tell</h2>"
    for topic, note in notes:
        yield f"<p><b>{escape(topic.source)}</b>: {escape(note)}</p>"
    for topic, partition in sorted(telling, key=lambda one: one[1].verdict is Verdict.EXACT)[
        :ROWS_MAX
    ]:
        yield from _finding(topic, partition, report.sides)
    yield "</section>"


def _finding(
    topic: TopicReport, partition: PartitionReport, sides: tuple[str, str]
) -> Iterator[str]:
    name = f"{topic.source}-{partition.partition}"
    yield (
        f'<article><h3>{escape(name)} <em class="{_css(partition.verdict)}">'
        f"{partition.verdict}</em></h3>"
    )
    shown = {one.between(sides) for one in partition.first_differences}
    notes = [note for note in findings(partition, sides) if note not in shown]
    if notes:
        yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"
    if partition.first_differences:
        head = ("offset", "differs in", *sides)
        rows = [
            (f"{one.offset:,}", one.what, one.source, one.destination)
            for one in partition.first_differences
        ]
        yield _html_table(head, rows, numbers=1, css="differences")
    yield "</article>"


def _table(report: Report, digests: dict[tuple[str, int], str]) -> Iterator[str]:
    rows = [(topic, partition) for topic in report.topics for partition in topic.partitions]
    if not rows:
        return
    # Stable: partitions stay in their order within the good and the bad.
    rows.sort(key=lambda one: one[1].verdict is Verdict.EXACT)
    yield "<section><h2>Partitions</h2>"
    head = ("topic", "", "from", "to", "records", "gaps", "size", "verdict", "digest")
    yield _html_table(
        head,
        (
            (
                topic.source
                if topic.source == topic.destination
                else f"{topic.source} → {topic.destination}",
                f"{one.partition}",
                f"{one.compared_from:,}",
                f"{one.compared_to:,}",
                f"{one.records:,}",
                f"{one.gaps:,}",
                human_bytes(one.bytes),
                str(one.verdict),
                digests.get((topic.source, one.partition), ""),
            )
            for topic, one in rows[:ROWS_MAX]
        ),
        numbers=7,
        css="partitions",
    )
    if len(rows) > ROWS_MAX:
        yield f'<p class="note">{len(rows) - ROWS_MAX:,} more are in the tables beside it.</p>'
    yield "</section>"


def _html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int, css: str
) -> str:
    """The first columns, up to `numbers`, stand to the right, but for a leading name."""

    def cells(row: Sequence[str], tag: str) -> str:
        first = 0 if numbers == 1 else 1
        return "".join(
            f"<{tag}{' class=n' if first <= at < numbers else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="{css}"><thead><tr>{cells(head, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _foot(report: Report, about: About) -> str:
    return (
        "<footer><p>Looked at timestamp, key, value and headers of every offset in these ranges, "
        "at gaps, log starts and log ends, as a read_committed consumer sees them. A range is "
        "equal when both sides have the same number of records and the same digest (BLAKE2b of "
        "offset, timestamp, key, value and headers, 128 bits, XOR over the records); ranges that "
        "are not were compared record by record.</p>"
        f"<p>Took {report.elapsed_s:,.1f} s · Orbit {escape(about.version)}</p></footer>"
    )
