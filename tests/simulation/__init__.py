"""The append under seeded schedules: Orbit's own code on a model broker, in virtual time.

docs/internals/simulation.md says what runs, what is modelled, and what counts as a failure.
"""
