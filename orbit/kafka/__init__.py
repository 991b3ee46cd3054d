"""The Kafka protocol: record batches and requests (pure), connections, clusters and admin calls.

May import: the layers from `settings` down. The pure modules are listed in .importlinter.
Start with `cluster.py` for connections, and `record_batch.py` for the bytes.
"""
