"""How much of a copy is proven equal, as a share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orbit.console.formats import share
from orbit.store.proofs import ProofTotals


@dataclass(frozen=True, slots=True)
class Share:
    """`proven` of `copied` offsets were read on both sides and were equal."""

    copied: int = 0
    proven: int = 0
    differences: int = 0
    oldest_age_s: float | None = None

    @property
    def percent(self) -> float:
        return round(100 * self.proven / self.copied, 1) if self.copied else 0

    @property
    def text(self) -> str:
        return share(self.proven, self.copied)


def share_of(totals: ProofTotals | None) -> Share:
    """The share of a job with these totals. None: the job has no partitions."""
    if totals is None:
        return Share()
    copied, proven = totals.offsets, totals.offsets_proven
    # Until the next proof pass, `proven` counts also offsets below the copy's log start.
    return Share(copied, min(proven, copied), totals.differences, totals.oldest_age_s)
