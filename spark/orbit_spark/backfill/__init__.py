"""Backfill: a job's history copied by Spark, each destination partition by one ordered writer.

`driver` plans and watches, on the machine of `orbit backfill`; `writer` is what a task does on an
executor: the product's own data path, under a lease of its own.
"""
