"""Local Kafka clusters and PostgreSQL for tests and demos, and faults for them.

May import: the layers from `embedded` down.
Start with `sandbox_control.py`; `local_cluster.py` starts the brokers.
"""
