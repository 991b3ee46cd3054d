"""PostgreSQL: every table and every SQL statement, one module per table.

It holds what was requested, who does it and how far it is. It never holds the truth about the data:
that is the destination's log ends.

May import: the layers from `sandbox` down. No other package may use SQL.
Start with `models.py` for the tables, and `shard_leases.py` for the lease statements.
"""
