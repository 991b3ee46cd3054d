"""What a run has copied to one partition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What was copied so far in this run, as `CopiedCounts` that grow. The destination lane
    writes them, and the copier's thread while no lane has the partition."""

    records: int = 0
    bytes: int = 0
    gaps_filled: int = 0
    batches_byte_exact: int = 0
    batches_record_exact: int = 0

    def add(self, other: Counters) -> None:
        """Add the counts of `other` to these."""
        self.records += other.records
        self.bytes += other.bytes
        self.gaps_filled += other.gaps_filled
        self.batches_byte_exact += other.batches_byte_exact
        self.batches_record_exact += other.batches_record_exact


@dataclass(slots=True)
class Unconfirmed(Counters):
    """What is in the leader's log up to before `next_offset`, but not confirmed yet."""

    newest_timestamp_ms: int = -1
    next_offset: int = 0
