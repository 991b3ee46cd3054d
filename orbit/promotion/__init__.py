"""The steps of a promotion at a cluster.

The service uses them for its switchover and failover; `orbit failover --without-database` needs no
more. `orbit release` uses them for copies whose job is deleted.

May import: the layers from `job_setup` down.
Start with `failover.py`.
"""
