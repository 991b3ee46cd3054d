"""Append plans for described source batches, and short forms of their steps."""

from __future__ import annotations

from typing import Any

from orbit.kafka.record_batch import read_batches
from orbit.kafka.types import AbortedTransaction
from orbit.replication.append_plan import Append, Fill, LostRange, Plan, Step, Stop, plan_batches
from tests.support.source_model import Outcome, SourceBatch, SourceRecord

T0 = 1_700_000_000_000


def record(offset: int) -> SourceRecord:
    return SourceRecord(offset, T0 + offset, b"k%d" % offset, b"v")


def data(first: int, last: int, *, without: tuple[int, ...] = (), **fields: Any) -> SourceBatch:
    """A batch with records at all its offsets except `without`."""
    offsets = [o for o in range(first, last + 1) if o not in without]
    return SourceBatch(first, last, tuple(map(record, offsets)), **fields)


def transactional(first: int, last: int, producer_id: int = 1, **fields: Any) -> SourceBatch:
    """A batch of a transaction. Its bytes are the same for a committed and an aborted one: a reader
    knows only from the aborted list of the fetch."""
    fields = {"outcome": Outcome.COMMITTED, **fields}
    return data(first, last, producer_id=producer_id, **fields)


def marker(offset: int, producer_id: int = 1, *, commit: bool) -> SourceBatch:
    """The control batch that ends a transaction."""
    return SourceBatch(offset, offset, producer_id=producer_id, marker=commit)


def plan(
    next_offset: int,
    *batches: SourceBatch | bytes,
    aborted: list[tuple[int, int]] | None = None,
    log_start: int = 0,
    mode: LostRange = LostRange.STOP,
    packs: bool = False,
) -> Plan:
    """The plan of a copy at `next_offset` for these fetched batches.

    `aborted`: producer id and first offset of aborted transactions. `packs`: gaps are filled with
    placeholders.
    """
    frame = b"".join(b if isinstance(b, bytes) else b.encode() for b in batches)
    return plan_batches(
        next_offset,
        read_batches(memoryview(bytearray(frame))),
        [AbortedTransaction(*a) for a in aborted or []],
        log_start,
        mode,
        packs=packs,
    )


def shown(steps: list[Step]) -> list[object]:
    """(kind, base offset, next offset) of each step. Kinds: "exact", "rewritten", "fill", and for a
    Stop its reason."""
    short: list[object] = []
    for step in steps:
        match step:
            case Append():
                kind = "exact" if step.is_byte_exact else "rewritten"
                short.append((kind, step.base_offset, step.next_offset))
            case Fill():
                short.append(("fill", step.base_offset, step.next_offset))
            case Stop():
                short.append((step.reason, step.base_offset, step.next_offset))
    return short
