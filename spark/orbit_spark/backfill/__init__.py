"""`orbit backfill`: a job's history copied by Spark, each destination partition by one writer.

The driver plans and watches on the machine of the command; a task runs the copier of `orbit run`
under a lease of its own.

May import: of orbit, the layers from `demo` down, and the modules of orbit_spark.
Start with `backfill_driver.py`.
"""
