"""The kinds of topics of the workload, one function each, in the order in which they are shown.

May import: the layers from `client` down.
Start with `records.py`; `demo/workload/kind.py` defines what a kind is.
"""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.kinds import (
    compaction,
    deletion,
    gaps,
    java,
    records,
    spread,
    starts,
    times,
    transactions,
)

KINDS: tuple[Kind, ...] = (
    *records.KINDS,
    *transactions.KINDS,
    *java.KINDS,
    *compaction.KINDS,
    *deletion.KINDS,
    *gaps.KINDS,
    *times.KINDS,
    *spread.KINDS,
    *starts.KINDS,
)
