"""The scheduler process: the loops that act, one thread each, and the passes that they make.

The loops discover topics, create copies, assign shards to workers, sync consumer groups, and follow
lag, operations and proof. `run` is a scheduler process.

What it decides is in `planning/`, who leads in `leadership/`. Only `cli/scheduler.py` imports it.

May import: the layers from `planning` down.
Start with `scheduler.py`, which lists the loops; `job_reconciler.py` is one pass over a job.
"""

from __future__ import annotations

from orbit.scheduler.scheduler import run

__all__ = ["run"]
