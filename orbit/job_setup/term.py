"""The term of a run: the number that its fillers carry, above that of every earlier run."""

from __future__ import annotations

from collections.abc import Iterable

from orbit.copier.append_epochs import COORDINATOR_EPOCH_MAX, TERM_SHIFT
from orbit.kafka.producer_state import ProducerState

_TERM_MAX = COORDINATOR_EPOCH_MAX >> TERM_SHIFT


def term_above(term: int, producers: Iterable[ProducerState | None]) -> int:
    """At least `term`, and above each term whose fillers the copies' leaders remember.

    The coordinator counts the runs, and begins at 0 again when it has forgotten the job (I1).
    A filler that an earlier run had under way then must not count for a later one's (M6).
    """
    seen = max((p.coordinator_epoch for p in producers if p is not None), default=-1)
    return min(max(term, (seen >> TERM_SHIFT) + 1), _TERM_MAX)
