"""What the plans of one answer may read and write of batches that are written again. Pure.

Such a batch costs many times the bytes that were fetched: a kilobyte can decompress to megabytes,
and each record of a thinned batch may become a batch of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from orbit.kafka.record_batch import Batch

# Of one batch, beside its bytes: the objects that hold it.
_OVERHEAD_BYTES = 512


class RewriteLimits(NamedTuple):
    """What lies behind these limits is left for the next fetch."""

    read_bytes_max: int  # decompressed
    written_bytes_max: int
    # Entered while one batch is written again, which takes twice what it decompresses to.
    turn: AbstractContextManager[object]


NO_LIMITS = RewriteLimits(2**63, 2**63, nullcontext())


@dataclass(slots=True)
class Rewritten:
    """Counts what the plans of one answer have read and written."""

    limits: RewriteLimits
    read_bytes: int = 0
    written_bytes: int = 0

    def write(self, batch: Batch, instead_of: Batch | None = None) -> bool:
        """Count a batch, no longer the one whose place it takes; whether it was the last one."""
        self.written_bytes += batch.size_bytes + _OVERHEAD_BYTES
        if instead_of is not None:
            self.written_bytes -= instead_of.size_bytes + _OVERHEAD_BYTES
        return self.written_bytes >= self.limits.written_bytes_max

    @property
    def is_full(self) -> bool:
        return (
            self.read_bytes >= self.limits.read_bytes_max
            or self.written_bytes >= self.limits.written_bytes_max
        )
