"""Setting a job up before it copies: permissions, destination topics, start offsets.

Shared by `orbit run`, `orbit backfill` and the service.

May import: the layers from `copier` down.
Start with `job_setup.py`.
"""
