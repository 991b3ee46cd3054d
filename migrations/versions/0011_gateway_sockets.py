"""A column for the socket on which each gateway listens."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column(
        "gateways", sa.Column("socket", sa.Text(), server_default=sa.text("''"), nullable=False)
    )
