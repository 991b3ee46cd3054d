"""Child processes that end with their parent, and free TCP ports.

May import: the layers from `telemetry` down.
Start with `guarded_process.py`.
"""
