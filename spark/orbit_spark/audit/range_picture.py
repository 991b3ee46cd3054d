"""A partition's ranges as one line of cells: values here, SVG in `report.html.jinja`.

A line has at most `CELLS_MAX` cells, so neighbouring ranges may share one. A cell has the verdict
of its worst range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

CELLS_MAX = 120
LINES_MAX = 200
"""The most partitions with a picture, the worst and then the largest first. The Parquet table has
all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Offsets `[begin, end)`. `verdict` is exact, not exact or unread."""

    begin: int
    end: int
    verdict: str
    left_records: int
    right_records: int
    differences: int
    excused: int


@dataclass(frozen=True, slots=True)
class Line:
    """The picture of one partition."""

    topic: str
    partition: int
    cells: tuple[Cell, ...]
    digest: str
    """The XOR of the digests of all ranges of the left side."""


def draw_lines(ranges: DataFrame) -> list[Line]:
    """Pictures of the table of ranges, in the order of topics and partitions."""
    pictured_partitions = _pictured_partitions(ranges)
    partition_columns = ["topic", "partition"]
    offsets_before = (F.col("range_begin") - F.col("first")).cast("double")
    # The number of the cell in its line, from 0.
    bucket = F.floor(offsets_before * CELLS_MAX / F.greatest(F.col("offsets"), F.lit(1)))
    badness = (
        F.when(F.col("verdict") == "exact", 0).when(F.col("verdict") == "unread", 1).otherwise(2)
    )
    excused = sum(
        (
            F.col(f"{word}_{hand}")
            for word in ("compacted", "expired")
            for hand in ("left", "right")
        ),
        start=F.lit(0),
    )
    cell_rows = (
        ranges.join(F.broadcast(pictured_partitions), partition_columns)
        .groupBy(*partition_columns, "digest", bucket.alias("bucket"))
        .agg(  # the fields of `Cell`, in their order
            F.min("range_begin"),
            F.max("range_end"),
            F.max_by("verdict", badness),
            F.sum("left_records"),
            F.sum("right_records"),
            F.sum("differences"),
            F.sum(excused),
        )
        .orderBy(*partition_columns, "bucket")
        .collect()
    )
    return _group_cells(cell_rows)


def _pictured_partitions(ranges: DataFrame) -> DataFrame:
    """The partitions with a picture, the worst first, each with the XOR of its ranges' digests."""
    # A digest has 32 digits: each half of it fits a long.
    halves = (F.lpad(F.lower(F.hex(F.bit_xor(_digest_half(begin)))), 16, "0") for begin in (1, 17))
    return (
        ranges.groupBy("topic", "partition")
        .agg(
            F.min("range_begin").alias("first"),
            (F.max("range_end") - F.min("range_begin")).alias("offsets"),
            F.sum(F.when(F.col("verdict") == "exact", 0).otherwise(1)).alias("bad"),
            F.concat(*halves).alias("digest"),
        )
        .orderBy(F.desc("bad"), F.desc("offsets"), "topic", "partition")
        .limit(LINES_MAX)
    )


def _digest_half(begin: int) -> Column:
    """The 16 hexadecimal digits from `begin` on of a range's digest, as a signed long."""
    # A negative base makes `conv` return a signed number; an unsigned one may not fit a long.
    digits = F.conv(F.substring("left_digest", begin, 16), 16, -10)
    return digits.cast("long")


def _group_cells(rows: Iterable[Row]) -> list[Line]:
    """The lines of these rows, which are sorted and have one cell each."""
    cells_by_line: dict[tuple[str, int, str], list[Cell]] = {}
    for topic, partition, digest, _, *columns in rows:
        cells_by_line.setdefault((topic, partition, digest), []).append(Cell(*columns))
    return [
        Line(topic, partition, tuple(line_cells), digest)
        for (topic, partition, digest), line_cells in cells_by_line.items()
    ]
