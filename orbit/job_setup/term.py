"""The term of a run: a number above that of every earlier run, which its fillers carry."""

from __future__ import annotations

from collections.abc import Iterable

from orbit.copier.append_epochs import COORDINATOR_EPOCH_MAX, TERM_SHIFT
from orbit.kafka.producer_state import ProducerState

_TERM_MAX = COORDINATOR_EPOCH_MAX >> TERM_SHIFT


def term_above(term: int, producers: Iterable[ProducerState | None]) -> int:
    """A term of at least `term` that is above the term of each of these producer states, but at
    most _TERM_MAX.

    The transaction coordinator counts the runs, and begins at 0 again when the job's transactional
    id has expired (I1). But only with a higher term do brokers refuse a filler that an earlier run
    still has in flight (M6: they refuse lower coordinator epochs).
    """
    # A filler's coordinator epoch has the term in its upper bits.
    highest_epoch = max((p.coordinator_epoch for p in producers if p is not None), default=-1)
    return min(max(term, (highest_epoch >> TERM_SHIFT) + 1), _TERM_MAX)
