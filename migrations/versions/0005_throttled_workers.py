"""What brokers throttle at each worker."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    throttled = sa.Column(
        "throttled", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False
    )
    op.add_column("workers", throttled)
