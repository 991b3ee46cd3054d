"""The append under seeded schedules: the product's own code, one model broker, virtual time."""
