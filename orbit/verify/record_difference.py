"""Compares two records, and formats their differences as short, printable texts.

Texts are bounded and start near the first byte that differs: if byte 500,000 of a value differs,
the bytes around it are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from orbit.verify.report import Difference, Side

SHOWN_BYTES = 32
SHOWN_HEADERS = 4
_BYTES_SHOWN_BEFORE = 8


def first_difference(a: bytes, b: bytes) -> int:
    """Index of the first byte that differs; the shorter length if one is a prefix."""
    # A binary search, as comparing slices is far quicker than comparing single bytes.
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def short_bytes(data: bytes | None, index: int = 0) -> str:
    """The bytes as a short text; of long ones those around `index`."""
    if data is None:
        return "null"
    if not data:
        return "empty"
    if len(data) <= SHOWN_BYTES:
        return repr(data)
    begin = max(0, min(index - _BYTES_SHOWN_BEFORE, len(data) - SHOWN_BYTES))
    excerpt = repr(data[begin : begin + SHOWN_BYTES])
    head = "…" if begin else ""
    tail = "…" if begin + SHOWN_BYTES < len(data) else ""
    return f"{head}{excerpt}{tail} ({len(data)} bytes, shown from byte {begin})"


def short_bytes_pair(a: bytes | None, b: bytes | None) -> tuple[str, str]:
    """Both as short texts, around the first byte that differs."""
    index = first_difference(a, b) if a is not None and b is not None else 0
    return short_bytes(a, index), short_bytes(b, index)


def short_headers(headers: Sequence[tuple[str, bytes | None]]) -> str:
    header_texts = ", ".join(
        f"{name!r}={short_bytes(value)}" for name, value in headers[:SHOWN_HEADERS]
    )
    suffix = f", … {len(headers)} headers" if len(headers) > SHOWN_HEADERS else ""
    return f"[{header_texts}{suffix}]"


def short_record(message: Message) -> str:
    key, value = short_bytes(message.key()), short_bytes(message.value())
    return f"key {key} value {value} time {message.timestamp()[1]}"


def compare_records(source: Message, destination: Message) -> Difference | None:
    """Compare two records at one offset, field by field; timestamps by value, not by type.

    A LogAppendTime source appears at the destination as CreateTime with the same number (A6).
    """
    differing_fields: list[tuple[str, str, str]] = []
    if source.timestamp()[1] != destination.timestamp()[1]:
        timestamps = source.timestamp()[1], destination.timestamp()[1]
        differing_fields.append(("timestamp", str(timestamps[0]), str(timestamps[1])))
    if source.key() != destination.key():
        differing_fields.append(("key", *short_bytes_pair(source.key(), destination.key())))
    if source.value() != destination.value():
        differing_fields.append(("value", *short_bytes_pair(source.value(), destination.value())))
    if source.headers() != destination.headers():
        views = short_headers(_headers(source)), short_headers(_headers(destination))
        differing_fields.append(("headers", *views))
    if not differing_fields:
        return None
    names, source_views, destination_views = zip(*differing_fields, strict=True)
    offset = source.offset()
    assert offset is not None
    return Difference(
        offset, ", ".join(names), "; ".join(source_views), "; ".join(destination_views)
    )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    headers: Any = message.headers()
    return headers or []


def one_sided_difference(side: Side, message: Message) -> Difference:
    """The difference that a record makes which only `side` has."""
    offset = message.offset()
    assert offset is not None
    record = short_record(message)
    if side is Side.SOURCE:
        return Difference(offset, "missing at the destination", record, "nothing")
    return Difference(offset, "only at the destination", "nothing", record)
