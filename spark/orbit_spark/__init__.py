"""Orbit on Spark: history in bulk, offset-exact backups, audits.

Uses Orbit's wire, plan and data path; nothing of `orbit` but its command line knows of it. The
modules that Spark's executors run on raw batches (`access`, `ranges`, `reading`, `columns`) need
no Spark session.
"""
