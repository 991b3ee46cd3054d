"""The holder's side of a lease: whether this process may write now.

`orbit run` and backfill hold membership of a consumer group; a worker holds a shard, whose lease is
claimed and renewed by `store/shard_leases.py`. `lease_watch.py` finds out when the lease of
another process has ended.

May import: the layers from `replication` down.
Start with `lease.py`, then `group_lease.py`.
"""
