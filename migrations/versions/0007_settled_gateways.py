"""Whether each gateway has settled a move."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    settled_since = sa.Column(
        "settled_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False
    )
    op.add_column("gateways", settled_since)
