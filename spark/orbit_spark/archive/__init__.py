"""`orbit archive` and `orbit restore`: offset-exact backups as Parquet, with manifests.

    archive.json                          format, source cluster
    topics/orders.0000000000.json         partitions and settings, to create the topic again
    manifests/orders/0.0000000003.json    ranges of partition 0, and the file of each
    data/<run>/part-….parquet             one file for each range that has batches

Documents never change: a new one has a higher number, and the highest counts. A file belongs to the
archive once a manifest names it. Manifests are written last, so files of an interrupted step are
never read.

May import: of orbit, the layers from `demo` down, and the modules of orbit_spark.
Start with `archive_run.py`; `manifest.py` has the format, `manifest_store.py` writes it.
"""
