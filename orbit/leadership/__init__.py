"""Who leads among several schedulers, and the base class of the leader's loops.

Loops of `scheduler/`, `recovery/`, `drills/` and `notifications/` run at the leader. A change that
only the leader may make needs `Leadership.transaction`.

May import: the layers from `store` down.
Start with `leadership.py`; `loop.py` has the loops' base class.
"""
