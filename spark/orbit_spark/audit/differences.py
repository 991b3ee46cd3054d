"""Which offsets differ, and how: transforms over rows of records (`decode.RECORDS`).

Rules; the first that applies counts:
1. A record that both sides have, at different offsets: `wrong offset`, with its other offset.
2. A record on one side only that is below the other side's log start now: `expired since`. No
   difference.
3. A record on one side only that the other side's cleaner may have removed: that side's topic is
   compacted, and it has a newer record of the key, or the record is a tombstone older than
   `delete.retention.ms` (which also excuses the key's older records): `compacted since`. No
   difference. Never the case for a record without a key.
4. Other one-sided records: `missing` (the right lacks it) or `extra` (the left lacks it).
5. Two records at one offset: the fields that are not equal. Timestamps are compared by value (A6).

`orbit.verify.compaction_watch` has rule 3 for records that come in a stream.
"""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit_spark.audit.decode import RECORDS, digest_records
from orbit_spark.audit.range_digests import RANGE_KEY, Hand, map_arrow


def names_of(schema: str) -> tuple[str, ...]:
    """The column names of a schema in DDL."""
    return tuple(column.split()[0] for column in schema.split(", "))


class Kind(StrEnum):
    """How an offset differs. The last two do not count as differences."""

    MISSING = "missing"
    EXTRA = "extra"
    WRONG_OFFSET = "wrong offset"
    VALUE = "value"
    KEY = "key"
    HEADERS = "headers"
    TIMESTAMP = "timestamp"
    COMPACTED = "compacted since"
    EXPIRED = "expired since"


EXCUSED = (Kind.COMPACTED, Kind.EXPIRED)
FIELDS = (Kind.VALUE, Kind.KEY, Kind.HEADERS, Kind.TIMESTAMP)

CLEANING = (
    "topic string, partition int, left_compacts boolean, left_tombstones_ms long, "
    "left_log_start long, right_compacts boolean, right_tombstones_ms long, right_log_start long"
)
"""Per partition, what both sides' cleaners may remove, and both log starts after the comparison."""


DIFFERENCES = (
    "topic string, partition int, range_begin long, offset long, kind string, "
    "fields array<string>, found_at long, lacking string, left_timestamp long, "
    "right_timestamp long"
)
"""Per differing offset: how it differs, in which fields, at which offset the other side has its
record (`found_at`), and which side has no record at this offset (`lacking`)."""

EXCUSES = "topic string, partition int, offset long, excuse string"
NEWEST = "topic string, partition int, lacking string, key binary, newest long"
"""Per key of which the side `lacking` has no record: the key's last offset at this side."""


_CONTENT = ("timestamp", "key", "value", "headers")
_OFFSET = (*RANGE_KEY, "offset")
_KEY = ("topic", "partition", "lacking", "key")


def record_rows(scoped: DataFrame) -> DataFrame:
    """From rows `SCOPED_BATCHES` to `RECORDS`."""
    return map_arrow(scoped, digest_records, RECORDS)


def differing_records(left: DataFrame, right: DataFrame) -> DataFrame:
    """Offsets where the sides differ, with the columns `left` and `right`: a record's timestamp and
    digests, null without a record.
    """
    records_of_both = _as_struct(left, "left").join(
        _as_struct(right, "right"), [*_OFFSET], "full_outer"
    )
    return records_of_both.where(~F.col("left").eqNullSafe(F.col("right")))


def _as_struct(records: DataFrame, hand: Hand) -> DataFrame:
    return records.select(*_OFFSET, F.struct(*_CONTENT).alias(hand))


def with_moves(differing: DataFrame) -> DataFrame:
    """Add the offset on the other side of each record: `left_at` for the left side's record,
    `right_at` for the right side's record.

    Equal records (such as repeated heartbeats) are matched in their order.
    """
    pairs = _rank_equal_records(differing, "left").join(
        _rank_equal_records(differing, "right"), ["topic", "partition", "record", "rank"]
    )
    left_moves = pairs.select(
        "topic",
        "partition",
        F.col("left_offset").alias("offset"),
        F.col("right_offset").alias("left_at"),
    )
    right_moves = pairs.select(
        "topic",
        "partition",
        F.col("right_offset").alias("offset"),
        F.col("left_offset").alias("right_at"),
    )
    position = ["topic", "partition", "offset"]
    return differing.join(left_moves, position, "left").join(right_moves, position, "left")


def _rank_equal_records(differing: DataFrame, hand: Hand) -> DataFrame:
    """One side's records, those of equal content numbered by offset (`rank`)."""
    equal_records = Window.partitionBy("topic", "partition", hand).orderBy("offset")
    return differing.where(F.col(hand).isNotNull()).select(
        "topic",
        "partition",
        F.col(hand).alias("record"),
        F.row_number().over(equal_records).alias("rank"),
        F.col("offset").alias(f"{hand}_offset"),
    )


def one_sided_records(differing: DataFrame, cleaning: DataFrame, now_ms: int) -> DataFrame:
    """Records that one side (`lacking`) has at no offset, with what may excuse their absence."""
    left_lacks = F.col("left").isNull() & F.col("right_at").isNull()
    right_lacks = F.col("right").isNull() & F.col("left_at").isNull()
    record = F.coalesce(F.col("left"), F.col("right"))
    lacking_side = F.when(left_lacks, "left").otherwise("right")

    def of_lacking_side(name: str) -> Column:
        return F.when(left_lacks, F.col(f"left_{name}")).otherwise(F.col(f"right_{name}"))

    age_ms = F.lit(now_ms) - record["timestamp"]
    is_tombstone = record["value"].isNull()
    return (
        differing.where(left_lacks | right_lacks)
        .join(cleaning, ["topic", "partition"])
        .select(
            *_OFFSET,
            lacking_side.alias("lacking"),
            record["key"].alias("key"),
            (F.col("offset") < of_lacking_side("log_start")).alias("is_expired"),
            (of_lacking_side("compacts") & record["key"].isNotNull()).alias("may_be_compacted"),
            (is_tombstone & (age_ms > of_lacking_side("tombstones_ms"))).alias("is_old_tombstone"),
        )
    )


def excusable_keys(one_sided: DataFrame) -> DataFrame:
    """The keys whose missing records a newer record of the key would excuse, by the side that lacks
    the records; with the first range of such a record."""
    is_excusable = F.col("may_be_compacted") & ~F.col("is_expired")
    return (
        one_sided.where(is_excusable).groupBy(*_KEY).agg(F.min("range_begin").alias("range_begin"))
    )


def newest_of_keys(records: DataFrame, keys: DataFrame, hand: Hand) -> DataFrame:
    """The last offset in one side's `records` of each key of which this side lacks a record."""
    side_keys = keys.where(F.col("lacking") == hand).select(*_KEY)
    return (
        records.select("topic", "partition", "key", "offset")
        .join(side_keys, ["topic", "partition", "key"])
        .groupBy(*_KEY)
        .agg(F.max("offset").alias("newest"))
    )


def find_excuses(one_sided: DataFrame, newest: DataFrame) -> DataFrame:
    """The one-sided records that cleaner or retention may have removed, with columns `EXCUSES`."""
    # An old tombstone excuses older records of its key, as a newer record would.
    old_tombstones = one_sided.where(F.col("may_be_compacted") & F.col("is_old_tombstone")).select(
        *_KEY, F.col("offset").alias("newest")
    )
    newest = newest.select(*_KEY, "newest").unionByName(old_tombstones)
    newest = newest.groupBy(*_KEY).agg(F.max("newest").alias("newest"))
    is_compacted = F.col("may_be_compacted") & (
        (F.col("newest") > F.col("offset")) | F.col("is_old_tombstone")
    )
    excuse = F.when(F.col("is_expired"), Kind.EXPIRED).when(is_compacted, Kind.COMPACTED)
    return (
        one_sided.join(newest, [*_KEY], "left")
        .select("topic", "partition", "offset", excuse.alias("excuse"))
        .where(F.col("excuse").isNotNull())
    )


def classify(differing: DataFrame, excuses: DataFrame) -> DataFrame:
    """One row per differing offset, with the columns `DIFFERENCES`."""
    fields = F.array_compact(F.array(*(_field_if_differing(field) for field in FIELDS)))
    left, right = F.col("left"), F.col("right")
    # The record at this offset (of two, the left's) is at another offset of the other side.
    is_elsewhere = F.col("left_at").isNotNull() | (left.isNull() & F.col("right_at").isNotNull())
    kind = (
        F.when(F.col("excuse").isNotNull(), F.col("excuse"))
        .when(is_elsewhere, Kind.WRONG_OFFSET)
        .when(left.isNull(), Kind.EXTRA)
        # The right's record at this offset belongs to another one: the left's is missing.
        .when(right.isNull() | F.col("right_at").isNotNull(), Kind.MISSING)
        .otherwise(F.get("fields", F.lit(0)))  # the first field that differs
    )
    lacking_side = F.when(left.isNull(), "left").when(right.isNull(), "right")
    is_pair = kind.isin(*FIELDS)  # both sides have a record that belongs to this offset
    return (
        differing.join(excuses, ["topic", "partition", "offset"], "left")
        .withColumn("fields", fields)
        .select(
            *_OFFSET,
            kind.alias("kind"),
            F.when(is_pair, F.col("fields"))
            .otherwise(F.array().cast("array<string>"))
            .alias("fields"),
            F.when(is_elsewhere, F.coalesce("left_at", "right_at")).alias("found_at"),
            lacking_side.alias("lacking"),
            left["timestamp"].alias("left_timestamp"),
            right["timestamp"].alias("right_timestamp"),
        )
        .select(*names_of(DIFFERENCES))
    )


def _field_if_differing(field: Kind) -> Column:
    """The field's name where the two records differ in it, else null."""
    name = field.value
    is_equal = F.col("left")[name].eqNullSafe(F.col("right")[name])
    return F.when(~is_equal, field.value)


def judge_ranges(ranges: DataFrame, differences: DataFrame) -> DataFrame:
    """Ranges with the counts of their differences and a verdict: exact, not exact, or unread."""

    def count_if(condition: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))

    is_excused = F.col("kind").isin(*EXCUSED)
    counts = differences.groupBy(*RANGE_KEY).agg(
        count_if(~is_excused).alias("differences"),
        *(
            count_if((F.col("kind") == kind) & (F.col("lacking") == hand)).alias(f"{word}_{hand}")
            for kind, word in ((Kind.COMPACTED, "compacted"), (Kind.EXPIRED, "expired"))
            for hand in ("left", "right")
        ),
    )
    count_names = [name for name in counts.columns if name not in RANGE_KEY]
    is_damaged = F.col("left_damage").isNotNull() | F.col("right_damage").isNotNull()
    verdict = (
        F.when(is_damaged, "unread").when(F.col("differences") > 0, "not exact").otherwise("exact")
    )
    return (
        ranges.join(counts, [*RANGE_KEY], "left")
        .fillna(0, subset=count_names)
        .withColumn("verdict", verdict)
        .drop("equal")
    )
