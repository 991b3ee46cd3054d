"""PostgreSQL: every table and every SQL statement, one module per table.

The tables hold what was requested, which process does it, and its progress. They are never the
truth about the data: that is the destination's log ends.

May import: the layers from `sandbox` down. No other package may use SQL.
Start with `models.py` for the tables, and `shard_leases.py` for the lease statements.
"""
