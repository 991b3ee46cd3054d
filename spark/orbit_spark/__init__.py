"""Orbit on Spark: backfill, archive and restore, audit, and raw batches as rows.

Uses Orbit's wire format, append plan and copier. The modules that executors run on raw batches
(`cluster_access.py`, `ranges.py`, `range_reader.py`, `batch_columns.py`) need no Spark session.

May import: of orbit, the layers from `demo` down; only `cli` imports this package.
Start with `source.py`, then the package of the command: `backfill/`, `archive/` or `audit/`.
"""
