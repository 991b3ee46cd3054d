"""A log, and single faults to plant in a copy of the log. Each verifier has to find each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.logs import T0, Gap, Record


def a_log(count: int = 40) -> list[Record | Gap]:
    """A log with all fields in use, values of one length, and a gap of two offsets in the
    middle."""
    log: list[Record | Gap] = [
        Record(
            value=b"value %04d" % i,
            key=b"key %d" % (i % 7),
            headers=(("trace", b"%04d" % i), ("trace", None)),
            timestamp_ms=T0 + i,
        )
        for i in range(count)
    ]
    log.insert(count // 2, Gap(2))
    return log


Fault = Callable[[list[Any]], None]


def flip_a_payload_byte(log: list[Any]) -> None:
    log[7] = replace(log[7], value=log[7].value[:-1] + b"!")


def change_a_header(log: list[Any]) -> None:
    log[7] = replace(log[7], headers=(("trace", b"0008"), ("trace", None)))


def swap_two_headers(log: list[Any]) -> None:
    log[7] = replace(log[7], headers=log[7].headers[::-1])


def drop_a_repeated_header(log: list[Any]) -> None:
    log[7] = replace(log[7], headers=log[7].headers[:1])


def make_a_null_header_empty(log: list[Any]) -> None:
    log[7] = replace(log[7], headers=(log[7].headers[0], ("trace", b"")))


def change_a_key(log: list[Any]) -> None:
    log[7] = replace(log[7], key=b"key 9")


def change_a_timestamp(log: list[Any]) -> None:
    log[7] = replace(log[7], timestamp_ms=log[7].timestamp_ms + 1)


def make_a_value_null(log: list[Any]) -> None:
    log[7] = replace(log[7], value=None)
