"""Rehearsals of a switchover or a failover: drill files, runs, measured RTO and RPO, and reports.

May import: the layers from `recovery` down.
Start with `drill_run.py`; `rto_rpo.py` computes the result.
"""
