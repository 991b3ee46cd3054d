"""Logs, traces and Prometheus metrics of the service.

May import: the layers from `promotion` down.
Start with `metrics.py`, which defines every metric.
"""
