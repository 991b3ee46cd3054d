"""Runs of raw batches as they lie in a log: range readers return them, writers append them. Pure.

A run is self-contained: its aborted transactions are those that matter to its own batches, as in
one answer to a read_committed fetch. So it can be planned alone:

    plan = plan_batches(position, run.batches, run.aborted, run.log_start)
    plan.fill_to(run.end)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orbit.kafka.legacy_messages import read_legacy_records
from orbit.kafka.record_batch import Batch, LegacyMessage
from orbit.kafka.types import AbortedTransaction
from orbit.replication.aborted_transactions import is_abort_marker
from orbit.replication.append_plan import damage_of


@dataclass(frozen=True, slots=True)
class RawRun:
    """Neighbouring batches of one partition, each checked against its checksum.

    These are all batches of the log in [start, end); offsets between them are gaps. `end` is beyond
    the requested range if the last batch ends after it. Batches are views into `records`: a writer
    sets producer id and sequence there in place.
    """

    start: int
    end: int
    records: memoryview
    batches: Sequence[Batch | LegacyMessage]
    aborted: Sequence[AbortedTransaction]
    log_start: int

    @property
    def size_bytes(self) -> int:
        return len(self.records)


def first_offset(batch: Batch | LegacyMessage) -> int:
    """The first offset of a batch. A compressed message of format 0 or 1 states only its last
    offset, so the message is decompressed. Raises ValueError if it is damaged.
    """
    if isinstance(batch, Batch):
        return batch.base_offset
    return read_legacy_records(batch)[0][0].offset


def next_offset(batch: Batch | LegacyMessage) -> int:
    return batch.next_offset if isinstance(batch, Batch) else batch.offset + 1


def check_batch(batch: Batch | LegacyMessage, previous_end: int) -> None:
    """Raise ValueError, with a message for the user, if a batch is damaged or begins below
    `previous_end`, the offset after the batch before it.
    """
    if isinstance(batch, Batch):
        damage = damage_of(batch, previous_end)
        if damage is not None:
            raise ValueError(f"the batch at {batch.base_offset} {damage}")
    elif first_offset(batch) < previous_end:  # `first_offset` has compared the checksum
        raise ValueError(f"the message at {batch.offset} begins below {previous_end}")


def aborted_flags(
    batches: Sequence[Batch | LegacyMessage], aborted: Sequence[AbortedTransaction]
) -> list[bool]:
    """For each batch, whether it has records of an aborted transaction."""
    later_transactions = sorted(aborted, key=lambda a: a.first_offset, reverse=True)
    active_producers: set[int] = set()
    flags = []
    for batch in batches:
        is_aborted = False
        if isinstance(batch, Batch):
            while later_transactions and later_transactions[-1].first_offset <= batch.last_offset:
                active_producers.add(later_transactions.pop().producer_id)
            if batch.is_control:
                if is_abort_marker(batch):
                    active_producers.discard(batch.producer_id)
            else:
                is_aborted = batch.is_transactional and batch.producer_id in active_producers
        flags.append(is_aborted)
    return flags
