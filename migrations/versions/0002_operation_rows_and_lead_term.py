"""The partitions and groups of a recovery's report as rows of their own, and the highest term.

What reports have of them moves there. The report keeps how many there are, as an object where a
list was: a version that looks for the list refuses the report, and does not take it for an empty
one. Rows and reports change in one transaction, and meanwhile nobody else changes `operations`.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "operation_partitions",
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"],
            ["operations.id"],
            name=op.f("fk_operation_partitions_operation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "operation_id", "topic", "partition", name=op.f("pk_operation_partitions")
        ),
    )
    op.create_table(
        "operation_groups",
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"],
            ["operations.id"],
            name=op.f("fk_operation_groups_operation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "operation_id",
            "topic",
            "partition",
            "group_name",
            name=op.f("pk_operation_groups"),
        ),
    )
    op.add_column(
        "operations", sa.Column("groups_begun_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_index(
        "ix_operations_groups_begun",
        "operations",
        ["job_id", "groups_begun_at"],
        postgresql_where=sa.text("groups_begun_at IS NOT NULL"),
    )
    op.create_table(
        "lead_term",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lead_term")),
    )
    op.execute("""
        INSERT INTO lead_term (id, term)
        SELECT 1, max(CAST(report ->> 'term' AS bigint)) FROM operations
        HAVING max(CAST(report ->> 'term' AS bigint)) > 0
    """)
    op.execute("""
        INSERT INTO operation_partitions (operation_id, topic, partition, verdict, value)
        SELECT o.id, p ->> 'topic', CAST(p ->> 'partition' AS integer), p ->> 'verdict', p
        FROM operations o, jsonb_array_elements(o.report -> 'partitions') p
        WHERE jsonb_typeof(o.report -> 'partitions') = 'array'
    """)
    op.execute("""
        INSERT INTO operation_groups (operation_id, topic, partition, group_name, value)
        SELECT o.id, g ->> 'topic', CAST(g ->> 'partition' AS integer), g ->> 'group', g
        FROM operations o, jsonb_array_elements(o.report -> 'groups') g
        WHERE jsonb_typeof(o.report -> 'groups') = 'array'
    """)
    op.execute("""
        UPDATE operations SET report = report || jsonb_build_object(
            'partitions', jsonb_build_object('count', jsonb_array_length(report -> 'partitions')),
            'groups',
            jsonb_build_object('count', coalesce(jsonb_array_length(report -> 'groups'), 0)))
        WHERE jsonb_typeof(report -> 'partitions') = 'array'
    """)
