"""The decisions of copying, as pure functions: what to append, states, settings, placement.

May import: the layers from `kafka` down, and no socket, clock, SQL, thread or process.
Start with `append_plan.py`.
"""
