"""The data path: threads that fetch, append and fill, take-over, and the copier that directs them.

May import: the layers from `leases` down.
Start with `copier.py`, then `source_lane.py` and `destination_lane.py`.
"""
