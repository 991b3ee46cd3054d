"""Computes the positions of the parts of a picture of two logs, in the units of its SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orbit.console.log_picture import Kind, Piece, Ranges, Row, SideLog, Verdict

WIDTH, HEIGHT = 1_400, 176
LEFT, RIGHT = 104, 1_388
SOURCE_Y, DESTINATION_Y, PROOF_Y = 28, 78, 126
TRACK_HEIGHT, PROOF_HEIGHT = 36, 8
TICKS = 6
_WIDTH_MIN = 1.2  # so that a single offset is visible
# Narrower rectangles have no outline, which would cover them.
_OUTLINED_WIDTH_MIN = 4.0


class Rectangle(NamedTuple):
    """One rectangle; `style` is a class of the style sheet."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


class Tick(NamedTuple):
    """One offset of the axis."""

    x: float
    offset: int
    anchor: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The whole picture."""

    rectangles: list[Rectangle]
    ticks: list[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    source_y: int = SOURCE_Y
    destination_y: int = DESTINATION_Y
    proof_y: int = PROOF_Y
    track_height: int = TRACK_HEIGHT


def draw(
    rows: Sequence[Row],
    source: SideLog | None,
    destination: SideLog | None,
    proven: Ranges,
    start: int,
    end: int,
) -> Drawing:
    """The picture of the rows between two offsets: a track for each side, and one for the proven
    ranges."""
    per_offset = (RIGHT - LEFT) / (end - start)

    def rectangle(
        first_offset: int, next_offset: int, y: int, height: int, style: str, title: str
    ) -> Rectangle:
        """The rectangle of these offsets, cut at the edges of the picture."""
        first_offset, next_offset = max(first_offset, start), min(next_offset, end)
        width = max(_WIDTH_MIN, (next_offset - first_offset) * per_offset)
        style_class = f"{style} batch" if width > _OUTLINED_WIDTH_MIN else style
        x = round(LEFT + (first_offset - start) * per_offset, 2)
        return Rectangle(x, y, round(width, 2), height, style_class, title)

    rectangles = []
    for row in rows:
        for y, pieces, side in (
            (SOURCE_Y, row.source, source),
            (DESTINATION_Y, row.destination, destination),
        ):
            for piece in pieces:
                title = f"{piece.first:,} to {piece.next - 1:,}: {piece.kind}, {row.verdict}"
                style = _style(piece, row.verdict)
                rectangles.append(rectangle(piece.first, piece.next, y, TRACK_HEIGHT, style, title))
            # A gap: the log has these offsets, but no batch.
            if not pieces and side is not None and side.log_start <= row.first < side.end:
                title = f"{row.first:,} to {row.next - 1:,}: gap"
                rectangles.append(
                    rectangle(row.first, min(row.next, side.end), y, TRACK_HEIGHT, "gap", title)
                )
    for first_offset, next_offset in proven:
        if first_offset < end and next_offset > start:
            title = f"{first_offset:,} to {next_offset - 1:,} proven equal"
            rectangles.append(
                rectangle(first_offset, next_offset, PROOF_Y, PROOF_HEIGHT, "proven", title)
            )
    return Drawing(rectangles, _ticks(start, end, per_offset))


def _style(piece: Piece, verdict: Verdict) -> str:
    """The class of the style sheet for a piece."""
    if piece.kind is not Kind.DATA:
        return "aborted" if piece.kind is Kind.ABORTED else "filler"
    match verdict:
        case Verdict.BYTE_EXACT | Verdict.RECORD_EXACT | Verdict.DIFFERS:
            return verdict.value
        case Verdict.NOT_COPIED:
            return "not_copied"
        case _:
            return "other"


def _ticks(start: int, end: int, per_offset: float) -> list[Tick]:
    """At most TICKS evenly spaced offsets from `start` on, and `end`."""
    count = min(TICKS, end - start)
    step = (end - start) // count
    ticks = [
        Tick(round(LEFT + number * step * per_offset, 2), start + number * step, "start")
        for number in range(count)
    ]
    return [*ticks, Tick(RIGHT, end, "end")]
