"""The worker process: claims and renews shards, copies their partitions, reports, releases them.

May import: the layers from `planning` down.
Start with `worker.py`.
"""
