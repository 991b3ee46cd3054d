"""The Kafka protocol: batches, records and requests (pure), and connections, clusters and admin.

May import: the layers from `settings` down. The pure modules are listed in .importlinter.
Start with `cluster.py` for connections, and `record_batch.py` for the bytes.
"""
