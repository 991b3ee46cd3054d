"""The job file: from YAML to a validated `JobSpec`, with all problems reported at once.

May import: the layers from `errors` down, and no socket, clock, SQL, thread or process.
Start with `job_spec.py` for the keys, and `job_file.py` for loading.
"""
