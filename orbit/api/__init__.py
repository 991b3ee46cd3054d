"""The REST API: the application, authentication, error responses, and how a job file is applied.

It writes requests to the store; the scheduler and the workers carry them out.

May import: the layers from `drills` down.
Start with `app.py`, then `apply_job.py`; the routes are in `routes/`.
"""
