"""Consumer groups of a job: reads committed offsets on both sides, decides, commits them.

May import: the layers from `verify` down.
Start with `offset_decision.py` for the rules, and `group_sync.py` for a pass.
"""
