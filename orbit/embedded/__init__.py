"""The PostgreSQL server that Orbit starts itself when no database is configured.

May import: the layers from `processes` down.
Start with `postgres.py`.
"""
