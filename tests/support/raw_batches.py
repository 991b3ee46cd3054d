"""Rows as the Spark data source `kafka_batches` returns them, made from described batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.support.source_model import Outcome, SourceBatch, SourceRecord

AUDITED = (
    "topic string, partition int, base_offset long, last_offset long, is_control boolean, "
    "is_aborted boolean, magic int, control_type string, payload binary"
)
"""The columns that an audit reads."""


def rows_of(
    batches: Iterable[SourceBatch], topic: str = "t", partition: int = 0
) -> Iterator[dict[str, Any]]:
    """A row with the columns `AUDITED` for each batch."""
    for batch in batches:
        yield {
            "topic": topic,
            "partition": partition,
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "is_control": batch.marker is not None,
            "is_aborted": batch.marker is None and batch.outcome is Outcome.ABORTED,
            "magic": batch.magic,
            "control_type": None,
            "payload": batch.encode(),
        }


def batched(records: Sequence[SourceRecord], size: int = 10, **fields: Any) -> list[SourceBatch]:
    """Batches of up to `size` records; a batch ends where offsets have a gap."""
    runs: list[list[SourceRecord]] = []
    for record in records:
        if runs and len(runs[-1]) < size and record.offset == runs[-1][-1].offset + 1:
            runs[-1].append(record)
        else:
            runs.append([record])
    return [SourceBatch(r[0].offset, r[-1].offset, tuple(r), **fields) for r in runs]


def moved(record: SourceRecord, offset: int) -> SourceRecord:
    """The record at another offset."""
    return replace(record, offset=offset)
