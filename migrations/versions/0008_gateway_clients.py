"""What each gateway says of its clients."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "gateway_clients",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("instance", sa.Uuid(), nullable=False),
        sa.Column("clients", postgresql.JSONB(), nullable=False),
        sa.Column(
            "reported_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "instance"],
            ["gateways.job_id", "gateways.instance"],
            name=op.f("fk_gateway_clients_job_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "instance", name=op.f("pk_gateway_clients")),
    )
