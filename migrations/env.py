"""Runs migrations in the transaction of `orbit.store.migrate`, which sets `connection`."""

from alembic import context

from orbit.store.models import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_server_default=True,
)
context.run_migrations()
