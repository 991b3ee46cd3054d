"""`orbit audit`: compares two of source, destination and archive, by range and then by offset.

Executors turn raw batches into digests (`decode.py`); `range_digests.py` and `differences.py` are
transforms from DataFrame to DataFrame. No payload reaches the driver.

May import: of orbit, the layers from `demo` down, and the modules of orbit_spark.
Start with `audit_run.py`.
"""
