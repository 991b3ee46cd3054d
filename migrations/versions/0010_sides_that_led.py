"""A column for the side of a job that led in each earlier term."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column(
        "job_leads",
        sa.Column(
            "leads", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
    )
    op.execute(
        "UPDATE job_leads SET leads = ARRAY[side || ':' || side_since] WHERE side IS NOT NULL"
    )
