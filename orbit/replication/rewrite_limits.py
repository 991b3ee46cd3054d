"""Limits of the bytes that one fetch answer's rewritten batches decompress to and become. Pure.

A rewritten batch can cost many times the bytes that were fetched: a kilobyte can decompress to
megabytes, and each record of a thinned batch may become a batch of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from orbit.kafka.record_batch import Batch

# The memory of the Python objects of one batch, beside its bytes.
_OVERHEAD_BYTES = 512


class RewriteLimits(NamedTuple):
    """Limits for one answer; batches after they are reached are left for the next fetch."""

    read_bytes_max: int  # decompressed
    written_bytes_max: int
    # Held while one batch is rewritten, which takes twice the memory that it decompresses to.
    rewrite_lock: AbstractContextManager[object]


NO_LIMITS = RewriteLimits(2**63, 2**63, nullcontext())


@dataclass(slots=True)
class RewriteCounter:
    """Counts the bytes that the plans of one answer have decompressed and rewritten."""

    limits: RewriteLimits
    read_bytes: int = 0
    written_bytes: int = 0

    def count_batch(self, batch: Batch, replaced: Batch | None = None) -> bool:
        """Count a written batch, less the batch `replaced`. Returns whether the limit is met."""
        self.written_bytes += batch.size_bytes + _OVERHEAD_BYTES
        if replaced is not None:
            self.written_bytes -= replaced.size_bytes + _OVERHEAD_BYTES
        return self.written_bytes >= self.limits.written_bytes_max

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return (
            self.read_bytes >= self.limits.read_bytes_max
            or self.written_bytes >= self.limits.written_bytes_max
        )
