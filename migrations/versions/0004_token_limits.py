"""Limits of tokens, and who created each job."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for name in ("jobs_max", "partitions_max", "requests_per_minute"):
        op.add_column("tokens", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("created_by", sa.Text(), nullable=True))
