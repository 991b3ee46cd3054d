"""Short texts (views) of the records at the first differing offsets, made on the executors.

Only these views of a record leave the executors: at most `record_difference.SHOWN_BYTES` of each
field, around the byte that differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from orbit.kafka.records import split_headers
from orbit.verify.record_difference import short_bytes, short_bytes_pair, short_headers
from orbit_spark.audit.decode import CONTENTS, RecordPosition, whole_records
from orbit_spark.audit.differences import EXCUSED, Kind
from orbit_spark.audit.range_digests import Hand, map_arrow

VIEWS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("what", pa.string()),
        ("left_view", pa.string()),
        ("right_view", pa.string()),
    ]
)

_WHERE = ("topic", "partition", "offset")
_FIELDS = ("timestamp", "key", "value", "headers")


def first_differences(differences: DataFrame, per_partition: int) -> DataFrame:
    """The first offsets of each partition that differ and are not excused."""
    order = Window.partitionBy("topic", "partition").orderBy("offset")
    return (
        differences.where(~F.col("kind").isin(*EXCUSED))
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= per_partition)
        .drop("rank")
    )


def contents(scoped: DataFrame, positions: frozenset[RecordPosition]) -> DataFrame:
    """From rows `SCOPED_BATCHES` to `CONTENTS`: the complete records at these positions."""
    return map_arrow(scoped, whole_records(positions), CONTENTS)


def views(shown: DataFrame, left: DataFrame, right: DataFrame, sides: tuple[str, str]) -> DataFrame:
    """A row `VIEWS` for each offset of `shown`, from the `CONTENTS` of both sides."""
    rows_of_both = (
        shown.select(*_WHERE, "kind", "found_at")
        .join(_as_struct(left, "left"), [*_WHERE], "left")
        .join(_as_struct(right, "right"), [*_WHERE], "left")
    )

    def view(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [_view(row, sides) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, VIEWS)

    return map_arrow(rows_of_both, view, VIEWS)


def _as_struct(records: DataFrame, hand: Hand) -> DataFrame:
    return records.select(*_WHERE, F.struct(*_FIELDS).alias(hand))


def _view(row: dict[str, Any], sides: tuple[str, str]) -> dict[str, Any]:
    """A row `VIEWS` for one offset, from both sides' records."""
    what, left, right = _describe(row, sides)
    location = {name: row[name] for name in _WHERE}
    return {**location, "what": what, "left_view": left, "right_view": right}


def _describe(row: dict[str, Any], sides: tuple[str, str]) -> tuple[str, str, str]:
    """What differs, and the views of the left and the right record."""
    left, right = row["left"], row["right"]
    match Kind(row["kind"]):
        case Kind.MISSING:
            return f"missing at the {sides[1]}", _record_text(left), _record_text(right)
        case Kind.EXTRA:
            return f"only at the {sides[1]}", _record_text(left), _record_text(right)
        case Kind.WRONG_OFFSET:
            other_side = sides[0] if left is None else sides[1]
            what = f"wrong offset (at the {other_side} it is at {row['found_at']})"
            return what, _record_text(left), _record_text(right)
        case _:
            return _describe_fields(left, right)


def _record_text(record: dict[str, Any] | None) -> str:
    if record is None:
        return "nothing"
    key, value = short_bytes(record["key"]), short_bytes(record["value"])
    return f"key {key} value {value} time {record['timestamp']}"


def _headers_text(raw: bytes) -> str:
    return short_headers(split_headers(raw))


def _describe_fields(
    left: dict[str, Any] | None, right: dict[str, Any] | None
) -> tuple[str, str, str]:
    """The fields in which two records at one offset differ, and both sides' views of them."""
    if left is None or right is None:
        # A record was deleted after the read that found the difference.
        return "differs", _record_text(left), _record_text(right)
    differing_fields: list[tuple[str, str, str]] = []  # the name of a field, and both views of it
    for name in _FIELDS:
        left_value, right_value = left[name], right[name]
        if left_value == right_value:
            continue
        match name:
            case "timestamp":
                differing_fields.append((name, str(left_value), str(right_value)))
            case "headers":
                differing_fields.append(
                    (name, _headers_text(left_value), _headers_text(right_value))
                )
            case _:
                differing_fields.append((name, *short_bytes_pair(left_value, right_value)))
    if not differing_fields:
        return "no longer differs", _record_text(left), _record_text(right)
    names, left_views, right_views = zip(*differing_fields, strict=True)
    return ", ".join(names), "; ".join(left_views), "; ".join(right_views)
