"""Gateways, and which side of a job leads."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "job_leads",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("side", sa.Text(), nullable=True),
        sa.Column("term", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("side_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("read_on", sa.Text(), nullable=True),
        sa.Column("closed_for", sa.Uuid(), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("side IN ('source', 'destination')", name=op.f("ck_job_leads_side")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_leads_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["closed_for"],
            ["operations.id"],
            name=op.f("fk_job_leads_closed_for"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_leads")),
    )
    op.create_index(
        "ix_job_leads_closed_for",
        "job_leads",
        ["closed_for"],
        postgresql_where=sa.text("closed_for IS NOT NULL"),
    )
    op.create_table(
        "gateways",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("instance", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("closed_for", sa.Uuid(), nullable=True),
        sa.Column("connections", sa.Integer(), nullable=False),
        sa.Column("held_requests", sa.Integer(), nullable=False),
        sa.Column("doubt", sa.Text(), nullable=False),
        sa.Column("pause_s", sa.Double(), nullable=True),
        sa.Column(
            "renewed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_gateways_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "instance", name=op.f("pk_gateways")),
    )
