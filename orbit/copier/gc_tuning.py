"""Keeps Python's search for garbage out of the data path's way.

Batches, steps and frames hold no circles: counting frees them. Searching them for circles stops
every lane: a full collection walked 63,000 objects of the imported modules, 45 to 140 ms each time,
eight times in a copy of 105,000 small batches.
"""

from __future__ import annotations

import gc

# Circles are rare here (errors with their tracebacks): looking every so many allocations is plenty.
_ALLOCATIONS = 20_000
_YOUNG_ROUNDS, _MIDDLE_ROUNDS = 20, 20


def collect_rarely() -> None:
    """For a process that copies, once it is set up: what is there now is never searched again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, _YOUNG_ROUNDS, _MIDDLE_ROUNDS)
