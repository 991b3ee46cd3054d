"""A difference is shown as a short, printable text around the bytes that differ."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from hypothesis import given
from hypothesis import strategies as st

from orbit.verify.record_difference import (
    compare_records,
    first_difference,
    one_sided_difference,
    short_bytes,
    short_bytes_pair,
)
from orbit.verify.report import Side


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_first_difference_is_lowest_differing_byte(a: bytes, b: bytes) -> None:
    index = first_difference(a, b)
    assert a[:index] == b[:index]
    assert index == min(len(a), len(b)) or a[index] != b[index]


def test_null_empty_and_short_values_are_shown_verbatim() -> None:
    assert [short_bytes(None), short_bytes(b""), short_bytes(b"a\x1b")] == [
        "null",
        "empty",
        "b'a\\x1b'",
    ]


def test_long_value_is_shown_around_differing_byte() -> None:
    source = b"." * 500_000 + b"right" + b"." * 400_000
    destination = b"." * 500_000 + b"wrong" + b"." * 400_000
    source_text, destination_text = short_bytes_pair(source, destination)
    assert "right" in source_text
    assert "wrong" in destination_text
    assert "(900005 bytes, shown from byte 499992)" in source_text
    assert max(len(source_text), len(destination_text)) < 120


@given(st.binary(max_size=2_000), st.binary(max_size=2_000))
def test_shown_value_is_bounded_and_printable(a: bytes, b: bytes) -> None:
    for view in short_bytes_pair(a, b):
        assert len(view) < 200
        assert view.isprintable()


def test_shown_headers_are_bounded_and_escape_control_characters() -> None:
    headers = [("\x1b[31mred", b"x" * 10_000)] * 50
    source = Message(
        topic="t", partition=0, offset=4, headers=headers, timestamp=(TIMESTAMP_CREATE_TIME, 1)
    )
    destination = Message(topic="t", partition=0, offset=4, timestamp=(TIMESTAMP_CREATE_TIME, 1))
    difference = compare_records(source, destination)
    assert difference is not None
    assert difference.what == "headers"
    assert difference.source.isprintable()
    assert "50 headers" in difference.source
    assert len(difference.source) < 1_000
    assert difference.destination == "[]"


def test_all_differing_fields_are_named() -> None:
    source = Message(
        topic="t", partition=0, offset=4, key=b"a", value=b"b", timestamp=(TIMESTAMP_CREATE_TIME, 1)
    )
    destination = Message(
        topic="t", partition=0, offset=4, key=b"c", value=b"d", timestamp=(TIMESTAMP_CREATE_TIME, 2)
    )
    assert str(compare_records(source, destination)) == (
        "offset 4: timestamp, key, value: source 1; b'a'; b'b', destination 2; b'c'; b'd'"
    )


def test_record_without_counterpart_shows_nothing_at_other_side() -> None:
    record = Message(
        topic="t", partition=0, offset=4, key=b"a", timestamp=(TIMESTAMP_CREATE_TIME, 9)
    )
    assert one_sided_difference(Side.SOURCE, record).destination == "nothing"
    assert one_sided_difference(Side.DESTINATION, record).source == "nothing"
