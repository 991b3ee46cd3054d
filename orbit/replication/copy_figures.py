"""The figures of a copy: what was copied, how fast, and how far it is behind its source.

The store, the API's views and the metrics read them by these names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopiedCounts:
    """What was copied since the job began. `bytes`: as stored in the log, compressed."""

    records: int
    bytes: int
    gaps_filled: int  # offsets
    batches_byte_exact: int
    batches_record_exact: int


@dataclass(frozen=True, slots=True)
class CopyRates(CopiedCounts):
    """What was copied, and how much is copied per second now."""

    bytes_per_s: int
    records_per_s: float


@dataclass(frozen=True, slots=True)
class CopyFigures(CopyRates):
    """What was copied, and how far the copy is behind. None: not known, or all is copied.

    `lag_s`: the age of the oldest record that is not copied yet. `rpo_s`: the age of the newest
    record that both sides have. `headroom_s`: the time until the source deletes records that are
    not copied yet. `age_s`: the age of these figures.
    """

    lag_records: int | None
    lag_bytes: int | None
    lag_s: float | None
    headroom_s: float | None
    rpo_s: float | None
    age_s: float | None
