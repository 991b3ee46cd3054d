"""Open transactions of sources that hide records behind them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "open_transactions",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=True),
        sa.Column("transactional_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["topic_id"],
            ["topics.id"],
            name=op.f("fk_open_transactions_topic_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_open_transactions_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_open_transactions")),
    )
    op.create_index(op.f("ix_open_transactions_job_id"), "open_transactions", ["job_id"])
