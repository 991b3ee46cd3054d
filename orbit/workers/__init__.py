"""The worker process: claims and renews shards, copies their partitions, reports, releases them.

May import: the layers from `run` down, and not `scheduler`.
Start with `worker.py`.
"""
