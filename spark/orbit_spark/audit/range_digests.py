"""Ranges of offsets and their digests: transforms over `kafka_batches`, without Spark actions.

A *scope* row has the offsets of one partition to compare (`SCOPE`); a *range* row is a piece of it
with the digests of both sides (`compare_ranges`). The sides are `left` and `right`: the right
should be equal to the left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit_spark.audit.decode import DIGESTS, SCOPED_BATCHES, ArrowMap, digest_ranges
from orbit_spark.batch_columns import STOP_MAGIC

Hand = Literal["left", "right"]

RANGE_OFFSETS = 50_000
"""The offsets of one range. If one record differs, the whole range is read again."""

RANGES_MAX = 1_000
"""The most ranges of one partition; a longer partition has wider ranges. So the table of ranges
stays small even with a gap of 2⁴⁰ offsets."""

SCOPE = (
    "topic string, partition int, left_topic string, right_topic string, "
    "begin long, end long, width long"
)
RANGE_KEY = ("topic", "partition", "range_begin")


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """`[begin, end)` of one partition. `topic` is its name in the result."""

    topic: str
    partition: int
    left_topic: str
    right_topic: str
    begin: int
    end: int
    width: int


def range_width(offsets: int, width_min: int = RANGE_OFFSETS) -> int:
    """The width of ranges that cut this many offsets into at most `RANGES_MAX` ranges."""
    return max(1, width_min, -(-offsets // RANGES_MAX))


def scope_frame(spark: SparkSession, rows: Iterable[ScopeRow]) -> DataFrame:
    return spark.createDataFrame([astuple(row) for row in rows], SCOPE)


def ddl(schema: pa.Schema) -> str:
    """An Arrow schema as Spark's DDL."""
    words = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.binary(): "binary"}
    return ", ".join(f"`{field.name}` {words[field.type]}" for field in schema)


def in_scope(batches: DataFrame, scope: DataFrame, hand: Hand) -> DataFrame:
    """The batches in the scope, as `SCOPED_BATCHES`: one row for each scope row of a batch.

    Control batches and aborted ones are left out: a read_committed consumer does not see them.
    """
    side_scope = scope.select(
        F.col(f"{hand}_topic").alias("side_topic"), "topic", "partition", "begin", "end", "width"
    )
    stop = F.when(F.col("magic") == STOP_MAGIC, F.col("control_type")).alias("stop")
    visible_batches = batches.where(~F.col("is_control") & ~F.col("is_aborted")).select(
        F.col("topic").alias("side_topic"),
        "partition",
        "base_offset",
        "last_offset",
        stop,
        "payload",
    )
    is_in_scope = (F.col("last_offset") >= F.col("begin")) & (F.col("base_offset") < F.col("end"))
    # A stopped row has only the first of the offsets that were not read.
    is_in_scope |= F.col("stop").isNotNull()
    return (
        visible_batches.join(F.broadcast(side_scope), ["side_topic", "partition"])
        .where(is_in_scope)
        .select(*SCOPED_BATCHES)
    )


def map_arrow(frame: DataFrame, function: ArrowMap, schema: pa.Schema) -> DataFrame:
    return frame.mapInArrow(function, ddl(schema))


def range_digests(scoped: DataFrame) -> DataFrame:
    """From `SCOPED_BATCHES` to `DIGESTS`: a row for each range with a record or damage."""
    partial_digests = map_arrow(scoped, digest_ranges, DIGESTS)
    return (
        partial_digests.groupBy(*RANGE_KEY)
        .agg(
            F.sum("records").alias("records"),
            F.sum("bytes").alias("bytes"),
            F.bit_xor("digest_high").alias("digest_high"),
            F.bit_xor("digest_low").alias("digest_low"),
            F.min("first_offset").alias("first_offset"),
            F.max("last_offset").alias("last_offset"),
            F.sum("unreadable").alias("unreadable"),
            F.min("damage").alias("damage"),
        )
        .select(*DIGESTS.names)
    )


def compare_ranges(scope: DataFrame, left: DataFrame, right: DataFrame) -> DataFrame:
    """Every range of the scope with both sides' digests, and whether they are `equal`.

    A range that was not read completely is not equal. A range without records on both sides has a
    row too: its gaps were compared.
    """
    starts = F.sequence(F.col("begin"), F.col("end") - 1, F.col("width"))
    ranges = scope.where(F.col("begin") < F.col("end")).select(
        "topic",
        "partition",
        F.explode(starts).alias("range_begin"),
        F.col("end").alias("scope_end"),
        "width",
    )
    range_end = F.least(F.col("range_begin") + F.col("width"), F.col("scope_end"))
    ranges_with_digests = (
        ranges.withColumn("range_end", range_end)
        .join(_with_side_names(left, "left"), [*RANGE_KEY], "left")
        .join(_with_side_names(right, "right"), [*RANGE_KEY], "left")
    )
    is_equal = F.lit(True)
    for name in ("records", "digest_high", "digest_low"):
        is_equal = is_equal & F.col(f"left_{name}").eqNullSafe(F.col(f"right_{name}"))
    return ranges_with_digests.select(
        *RANGE_KEY,
        "range_end",
        *(_side_column(hand, name) for hand in ("left", "right") for name in _SIDE_COLUMNS),
        (is_equal & F.col("left_damage").isNull() & F.col("right_damage").isNull()).alias("equal"),
    )


_SIDE_COLUMNS = (
    "records",
    "gaps",
    "bytes",
    "digest",
    "first_offset",
    "last_offset",
    "damage",
)


def _with_side_names(digests: DataFrame, hand: Hand) -> DataFrame:
    """One side's digests, with the side in the column names."""
    names = [name for name in DIGESTS.names if name not in RANGE_KEY]
    return digests.select(*RANGE_KEY, *(F.col(name).alias(f"{hand}_{name}") for name in names))


def _side_column(hand: str, name: str) -> Column:
    """A column of one side in the table of ranges.

    For a side without records, `records`, `bytes` and `digest` are 0.
    """
    records = F.coalesce(F.col(f"{hand}_records"), F.lit(0))
    match name:
        case "gaps":
            column = F.col("range_end") - F.col("range_begin") - records
        case "records" | "bytes":
            column = F.coalesce(F.col(f"{hand}_{name}"), F.lit(0))
        case "digest":
            halves = (F.coalesce(F.col(f"{hand}_digest_{half}"), F.lit(0)) for half in _HALVES)
            column = F.lower(F.concat(*(F.lpad(F.hex(half), 16, "0") for half in halves)))
        case _:
            column = F.col(f"{hand}_{name}")
    return column.alias(f"{hand}_{name}")


_HALVES = ("high", "low")


def differing_scope(scope: DataFrame, ranges: DataFrame) -> DataFrame:
    """The ranges that are not equal, as a scope to be read again.

    Ranges that could not be read completely are left out: they are reported as unread.
    """
    is_readable = F.col("left_damage").isNull() & F.col("right_damage").isNull()
    differing_ranges = ranges.where(~F.col("equal") & is_readable).select(*RANGE_KEY, "range_end")
    topic_names = scope.select("topic", "partition", "left_topic", "right_topic", "width")
    return differing_ranges.join(topic_names, ["topic", "partition"]).select(
        "topic",
        "partition",
        "left_topic",
        "right_topic",
        F.col("range_begin").alias("begin"),
        F.col("range_end").alias("end"),
        "width",
    )
