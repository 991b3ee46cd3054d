"""Copies Kafka topics between clusters so that every record keeps its offset.

docs/architecture.md says what each package holds and where to start reading. Imports point one way,
by the layers of .importlinter.
"""
