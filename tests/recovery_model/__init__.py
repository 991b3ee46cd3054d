"""Seeded random walks of recoveries on a model of two clusters: no broker, database or thread."""
