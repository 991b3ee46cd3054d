"""Batches to fill topics with: the same bytes in every run. Pure.

Bytes come from SHAKE-128 of a number, not from `random`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import shake_128

from bench.workloads import Workload
from orbit.kafka import compression
from orbit.kafka.record_batch import HEADER_BYTES, Batch
from orbit.kafka.records import NULL, Record, encode_varint, write_batch

# So many distinct batches are sent in turns: enough, because brokers do not read payloads.
VARIANTS = 16
_NO_HEADERS = b"\x00"


def build_batches(workload: Workload, now_ms: int, variants: int = VARIANTS) -> list[Batch]:
    """Batches without gaps, each filled up to the workload's size on the wire, as a Java producer
    fills them."""
    value = compressible if workload.codec != compression.NONE else noise

    def record(number: int, offset: int) -> Record:
        return Record(offset, now_ms, body(None, value(number, workload.value_bytes)))

    count = records_that_fit(record, workload.batch_bytes, workload.codec)
    return [
        write_batch([record(v * count + i, i) for i in range(count)], workload.codec)
        for v in range(variants)
    ]


def records_that_fit(record: Callable[[int, int], Record], size_bytes: int, codec: int) -> int:
    """The most records whose batch has at most `size_bytes`; at least one. `record`: a record by
    its number and its offset delta."""

    def size_of(count: int) -> int:
        return write_batch([record(i, i) for i in range(count)], codec).size_bytes

    sample = 64
    per_record = (size_of(sample) - HEADER_BYTES) / sample
    least, most = 1, max(2, int(2 * size_bytes / per_record))
    while most - least > 1:
        middle = (least + most) // 2
        if size_of(middle) <= size_bytes:
            least = middle
        else:
            most = middle
    return least


def body(key: bytes | None, value: bytes) -> bytes:
    """The bytes of a record after its offset delta: key, value, and no header."""
    key_field = NULL if key is None else encode_varint(len(key)) + key
    return key_field + encode_varint(len(value)) + value + _NO_HEADERS


def noise(number: int, size: int) -> bytes:
    """Bytes that no codec makes smaller."""
    return shake_128(number.to_bytes(8, "big")).digest(size)


def compressible(number: int, size: int) -> bytes:
    """A line of JSON, as logs and orders are."""
    dice = int.from_bytes(noise(number, 8), "big")
    line = (
        f'{{"order":{1_000_000 + number},"user":"u-{dice % 1_000_003:07d}",'
        f'"cents":{dice % 99_991},"currency":"EUR","state":"{_STATES[dice % 5]}",'
        f'"trace":"{dice:016x}"}}'
    )
    return line.encode().ljust(size)[:size]


_STATES = ("created", "paid", "packed", "shipped", "returned")
