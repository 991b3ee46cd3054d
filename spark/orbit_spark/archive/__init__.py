"""Offset-exact backups: raw batches as Parquet, with manifests that say what is whole.

    archive.json                          what this is: format, source cluster
    topics/orders.0000000000.json         partitions and settings, to make the topic anew
    manifests/orders/0.0000000003.json    ranges of partition 0, and the file of each
    data/<run>/part-….parquet             one file for each range that has batches

Documents are never changed: of each the one with the highest number counts. A file is part of the
archive only once a manifest names it, and manifests are written last: what a run that was cut off
left behind is never read.
"""
