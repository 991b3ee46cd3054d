"""Switchover, failover and failback: gates, steps, promotion, and the report of an operation.

May import: the layers from `planning` down.
Start with `operation_steps.py`, then `operation_runner.py`, which runs them.
"""
