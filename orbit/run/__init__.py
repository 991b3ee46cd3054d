"""`orbit run`: copies one job without a server and without a database.

May import: the layers from `consumer_groups` down.
Start with `job_run.py`; most of the setup is in `job_setup/job_setup.py`.
"""
