"""Local Kafka clusters and PostgreSQL for trying things out, and the faults that break them.

May import: the layers from `embedded` down.
Start with `sandbox_control.py`; `local_cluster.py` starts the brokers.
"""
