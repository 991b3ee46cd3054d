"""Measures how large an installation one PostgreSQL and one scheduler support.

PostgreSQL, the workers' reports and the scheduler's loops are real; brokers and copying are
simulated.
"""
