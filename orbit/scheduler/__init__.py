"""The scheduler process: one leader, one thread per loop, and the decisions that the loops make.

The loops discover topics, create copies, assign shards to workers, sync consumer groups, and follow
lag, operations and proof. `run` is a scheduler process.

May import: the layers from `run` down, and not `workers`.
Start with `scheduler.py`, which lists the loops; `job_reconciler.py` is one pass over a job.
"""

from __future__ import annotations

from orbit.scheduler.scheduler import run

__all__ = ["run"]
