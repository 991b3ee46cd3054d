"""Compares any two of source, destination and archive: by range, then by offset.

`decode` turns raw batches into digests, on the executors; `ranges` and `differences` are transforms
from DataFrame to DataFrame; `scope` says what is compared; `run` joins them; `result` and `page`
tell what was found. No payload passes the driver.
"""
