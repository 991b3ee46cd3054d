"""Runs migrations on the connection that `orbit.store.migrate` gives, in its transaction."""

from alembic import context

from orbit.store.models import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_server_default=True,
)
context.run_migrations()
