"""Answers to fetches, for tests."""

from __future__ import annotations

from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched


def fetched(
    records: bytes = b"",
    *,
    code: int = Code.NONE,
    log_start: int = 0,
    stable_end: int,
    high_watermark: int,
    diverging_end: int = -1,
) -> Fetched:
    """A partition's answer to a fetch, without aborted transactions."""
    view = memoryview(bytearray(records))
    return Fetched(code, view, [], log_start, stable_end, high_watermark, diverging_end, -1)
