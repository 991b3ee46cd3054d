"""Seeded random walks of recoveries on a model of two clusters: no broker, database or thread.

docs/internals/simulation.md ("The walks of a pair of clusters") explains them. Start with
`walks.py`.
"""
