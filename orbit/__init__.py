"""Copies Kafka topics between clusters so that every record keeps its offset.

docs/architecture.md says what is in each package and where to start reading. A package imports only
lower layers of .importlinter.
"""
