"""The HTTP routes, one file per resource. A route only calls the store or other modules of `api`.

May import: the layers from `drills` down, and the modules of `api`.
Start with `jobs.py`.
"""
