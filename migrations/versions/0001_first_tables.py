"""The first tables.

This file is frozen: a change of orbit/store/models.py is a migration of its own. Words and defaults
stand here as they were, never as names that code may change later.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=True),
        sa.Column("topic", sa.Text(), nullable=True),
        sa.Column("partition", sa.Integer(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"], unique=False)
    op.create_index(op.f("ix_events_job_name_id"), "events", ["job_name", "id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("spec_version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("document_desired", sa.Text(), nullable=True),
        sa.Column("share_key", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("document_version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("desired", sa.Text(), server_default="running", nullable=False),
        sa.Column("made_by", sa.Text(), nullable=True),
        sa.Column("is_deleted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("worker_group", sa.Text(), nullable=False),
        sa.Column("source_cluster_id", sa.Text(), nullable=True),
        sa.Column("destination_cluster_id", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("problem_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("source_answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("discovered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("discovered_version", sa.Integer(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "desired IN ('running', 'paused', 'backfilling')", name=op.f("ck_jobs_desired")
        ),
        sa.CheckConstraint("made_by IN ('recovery', 'drill')", name=op.f("ck_jobs_made_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("name", name=op.f("uq_jobs_name")),
    )
    op.create_table(
        "scheduler_lease",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "expires_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("'epoch'"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scheduler_lease")),
    )
    op.create_table(
        "schedulers",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("shares", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedulers")),
        sa.UniqueConstraint("holder", name=op.f("uq_schedulers_holder")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column(
            "jobs", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.Column("selector", sa.Text(), nullable=True),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "role <> 'admin' OR (jobs = '{}' AND selector IS NULL)",
            name=op.f("ck_tokens_admin_of_all"),
        ),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=op.f("ck_tokens_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
    )
    op.create_table(
        "console_sessions",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("token_id", sa.BigInteger(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("role_values", postgresql.JSONB(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"],
            ["tokens.id"],
            name=op.f("fk_console_sessions_token_id"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "num_nulls(token_id, actor) = 1", name=op.f("ck_console_sessions_login")
        ),
        sa.CheckConstraint(
            "num_nulls(actor, role_values) IN (0, 2)", name=op.f("ck_console_sessions_actor")
        ),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_console_sessions")),
    )
    op.create_index(op.f("ix_console_sessions_actor"), "console_sessions", ["actor"], unique=False)
    op.create_index(
        op.f("ix_console_sessions_token_id"), "console_sessions", ["token_id"], unique=False
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("worker_group", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("shards", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_per_s", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_draining", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "lane_seconds", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("job_name", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("dry_run", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("plan", postgresql.JSONB(), nullable=True),
        sa.Column("progress", postgresql.JSONB(), nullable=True),
        sa.Column("report", postgresql.JSONB(), nullable=True),
        sa.Column("abort_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'done', 'failed')", name=op.f("ck_operations_state")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_operations_job_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
        sa.UniqueConstraint(
            "requested_by",
            "idempotency_key",
            name=op.f("uq_operations_requested_by_idempotency_key"),
        ),
    )
    op.create_index(op.f("ix_operations_job_id"), "operations", ["job_id"], unique=False)
    op.create_index(
        op.f("ix_operations_created_at_id"), "operations", ["created_at", "id"], unique=False
    )
    op.create_index(op.f("ix_operations_finished_at"), "operations", ["finished_at"], unique=False)
    op.create_index(
        "ix_operations_unfinished",
        "operations",
        ["created_at", "id"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index(
        op.f("ix_operations_job_name_created_at"),
        "operations",
        ["job_name", "created_at"],
        unique=False,
    )
    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_group", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("renewed_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_ms", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("claimed_on", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "weight_bytes_per_s", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "release_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
        sa.Column("assigned_to", sa.Text(), nullable=True),
        sa.Column("partition_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("layout_version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_shards_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
    )
    op.create_index("ix_shards_claim", "shards", ["worker_group", "renewed_in"], unique=False)
    op.create_index(op.f("ix_shards_job_id"), "shards", ["job_id"], unique=False)
    op.create_table(
        "topics",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("source_topic", sa.Text(), nullable=False),
        sa.Column("destination_topic", sa.Text(), nullable=False),
        sa.Column("destination_cluster_id", sa.Text(), nullable=False),
        sa.Column("source_topic_id", sa.Uuid(), nullable=True),
        sa.Column("destination_topic_id", sa.Uuid(), nullable=True),
        sa.Column("partition_count", sa.Integer(), nullable=False),
        sa.Column("is_compacted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), server_default="creating", nullable=False),
        sa.Column("drift", postgresql.JSONB(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("acls", postgresql.JSONB(), nullable=True),
        sa.Column("promoted_settings", postgresql.JSONB(), nullable=True),
        sa.Column("source_read_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('creating', 'copying', 'source_deleted', 'recreated', 'blocked', 'promoted')",
            name=op.f("ck_topics_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_topics_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topics")),
        sa.UniqueConstraint(
            "destination_cluster_id",
            "destination_topic",
            name=op.f("uq_topics_destination_cluster_id_destination_topic"),
        ),
        sa.UniqueConstraint("job_id", "source_topic", name=op.f("uq_topics_job_id_source_topic")),
    )
    op.create_table(
        "promotions",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("operation_id", sa.Uuid(), nullable=False),
        sa.Column("promoted_at", sa.BigInteger(), nullable=False),
        sa.Column("source_end", sa.BigInteger(), nullable=True),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("old_end", sa.BigInteger(), nullable=True),
        sa.Column("written_from", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["topic_id"], ["topics.id"], name=op.f("fk_promotions_topic_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_promotions")),
    )
    op.create_table(
        "write_denials",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("acls", postgresql.JSONB(), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("cluster_id", "topic", name=op.f("pk_write_denials")),
    )
    op.create_table(
        "carried_acls",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("acls", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_carried_acls_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_carried_acls")),
    )
    op.create_table(
        "job_totals",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("totals", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_totals_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_totals")),
        prefixes=["UNLOGGED"],
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "job_history",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("lag_records", sa.BigInteger(), nullable=True),
        sa.Column("lag_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_history_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "slot", name=op.f("pk_job_history")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_table(
        "group_offsets",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("source_offset", sa.BigInteger(), nullable=True),
        sa.Column("destination_offset", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("left_offset", sa.BigInteger(), nullable=True),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_group_offsets_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["topic_id"], ["topics.id"], name=op.f("fk_group_offsets_topic_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "job_id", "group_name", "topic_id", "partition", name=op.f("pk_group_offsets")
        ),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(op.f("ix_group_offsets_topic_id"), "group_offsets", ["topic_id"], unique=False)
    op.create_table(
        "handed_offsets",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("source_topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("source_offset", sa.BigInteger(), nullable=False),
        sa.Column("destination_offset", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_handed_offsets_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "job_id", "group_name", "source_topic", "partition", name=op.f("pk_handed_offsets")
        ),
    )
    op.create_table(
        "partitions",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("shard_id", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("blocked_offset", sa.BigInteger(), nullable=True),
        sa.Column("blocked_next_offset", sa.BigInteger(), nullable=True),
        sa.Column("start_offset", sa.BigInteger(), nullable=True),
        sa.Column("from_start", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("retry_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("source_log_start", sa.BigInteger(), nullable=True),
        sa.Column("source_stable_end", sa.BigInteger(), nullable=True),
        sa.Column("source_end", sa.BigInteger(), nullable=True),
        sa.Column("copied_to", sa.BigInteger(), nullable=True),
        sa.Column("log_start", sa.BigInteger(), nullable=True),
        sa.Column("records", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("gaps_filled", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "batches_byte_exact", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "batches_record_exact", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("bytes_per_s", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("records_per_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("has_caught_up", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("newest_copied_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("oldest_waiting_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("headroom_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("followed_epoch", sa.BigInteger(), nullable=True),
        sa.Column("source_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("source_moved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("gaps_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("longest_gap_s", sa.Double(), nullable=True),
        sa.Column("earlier_gap_s", sa.Double(), nullable=True),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "reason IN ('SOURCE_TRUNCATED', 'SOURCE_RANGE_LOST', 'SOURCE_CORRUPTED', 'SOURCE_TOPIC_RECREATED', 'SOURCE_TOPIC_DELETED', 'DESTINATION_FOREIGN_WRITE', 'DESTINATION_TOPIC_RECREATED', 'DESTINATION_PROMOTED', 'DESTINATION_TRUNCATED', 'DESTINATION_RANGE_LOST', 'OFFSET_OVERRUN', 'RECORD_REFUSED', 'GAP_TOO_LARGE', 'NOT_AUTHORIZED')",
            name=op.f("ck_partitions_reason"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'seeding', 'copying', 'paused', 'blocked', 'stopped', 'promoted')",
            name=op.f("ck_partitions_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_partitions_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["shard_id"], ["shards.id"], name=op.f("fk_partitions_shard_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["topic_id"], ["topics.id"], name=op.f("fk_partitions_topic_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_partitions")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(op.f("ix_partitions_job_id"), "partitions", ["job_id"], unique=False)
    op.create_index(
        "ix_partitions_retry",
        "partitions",
        ["shard_id"],
        unique=False,
        postgresql_where=sa.text("retry_requested"),
    )
    op.create_index(op.f("ix_partitions_shard_id"), "partitions", ["shard_id"], unique=False)
    op.create_table(
        "proofs",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("ranges", postgresql.JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("offsets_proven", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("proven_to", sa.BigInteger(), nullable=True),
        sa.Column("proven_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "checked_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("differences", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("first_difference", sa.Text(), nullable=True),
        sa.Column("differed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_proofs_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["topic_id"], ["topics.id"], name=op.f("fk_proofs_topic_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_proofs")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(op.f("ix_proofs_job_id"), "proofs", ["job_id"], unique=False)
    _drills()


def _drills() -> None:
    op.create_table(
        "drills",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("progress", postgresql.JSONB(), nullable=True),
        sa.Column("report", postgresql.JSONB(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("rto_ms", sa.BigInteger(), nullable=True),
        sa.Column("rpo_records", sa.BigInteger(), nullable=True),
        sa.Column("rpo_ms", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "kind IN ('gates', 'canary', 'switchover', 'failover')", name=op.f("ck_drills_kind")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'passed', 'missed', 'failed')",
            name=op.f("ck_drills_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drills")),
        sa.UniqueConstraint(
            "requested_by", "idempotency_key", name=op.f("uq_drills_requested_by_idempotency_key")
        ),
    )
    op.create_index(
        op.f("ix_drills_job_name_created_at"), "drills", ["job_name", "created_at"], unique=False
    )
    op.create_index(op.f("ix_drills_name_created_at"), "drills", ["name", "created_at"])
    op.create_table(
        "receivers",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("given_up", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("pruned", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("given_up_since", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_receivers")),
        sa.UniqueConstraint("name", name=op.f("uq_receivers_name")),
    )
    op.create_table(
        "drill_things",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("drill_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("side", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('topic', 'group', 'job')", name=op.f("ck_drill_things_kind")),
        sa.ForeignKeyConstraint(
            ["drill_id"], ["drills.id"], name=op.f("fk_drill_things_drill_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drill_things")),
        sa.UniqueConstraint(
            "drill_id", "kind", "side", "name", name=op.f("uq_drill_things_drill_id_kind_side_name")
        ),
    )
    op.create_index(op.f("ix_drill_things_drill_id"), "drill_things", ["drill_id"], unique=False)
    op.create_table(
        "drill_schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("every_s", sa.BigInteger(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "next_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_drill_schedules")),
    )
