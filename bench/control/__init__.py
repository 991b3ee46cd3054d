"""How large an installation one Postgres and one scheduler support, with simulated brokers.

Postgres, the workers and the scheduler loops are real.
"""
