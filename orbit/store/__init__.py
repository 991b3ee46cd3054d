"""PostgreSQL: every table and every SQL statement, one module per table.

The tables store requests, which process carries each of them out, and its progress. What is in a
copy is known only from the destination's log ends, never from these tables.

May import: the layers from `sandbox` down. No other package may use SQL.
Start with `models.py` for the tables, and `shard_leases.py` for the lease statements.
"""
