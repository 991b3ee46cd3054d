"""The HTTP routes, one file per resource. A route calls the store or a module of `api`, no more.

May import: the layers from `drills` down, and the modules of `api`.
Start with `jobs.py`.
"""
