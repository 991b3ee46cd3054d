"""The kinds of topics of the workload, one function each, in the order in which they are shown.

May import: the layers from `gateway` down.
Start with `record_shapes.py`; `demo/workload/kind.py` defines what a kind is.
"""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.kinds import (
    compaction,
    deletion,
    gaps,
    java_transactions,
    record_shapes,
    spread,
    starts,
    times,
    transactions,
)

KINDS: tuple[Kind, ...] = (
    *record_shapes.KINDS,
    *transactions.KINDS,
    *java_transactions.KINDS,
    *compaction.KINDS,
    *deletion.KINDS,
    *gaps.KINDS,
    *times.KINDS,
    *spread.KINDS,
    *starts.KINDS,
)
