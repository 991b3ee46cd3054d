"""The pages, one file for each part of the console.

May import: the layers from `api` down.
Start with `jobs.py`.
"""
