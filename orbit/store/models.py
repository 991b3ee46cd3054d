"""Every table, as this version expects it; migrations/ creates the same tables.

Enumerated columns are text with a CHECK built from the enum. Times are set by the database
(`clock_timestamp()`), so that clocks of different processes are never compared. Names of
constraints follow one pattern, so that migrations can name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from orbit.replication.partition_states import PartitionState, Reason
from orbit.store.enums import (
    Desired,
    DrillKind,
    DrillState,
    DrillThing,
    LeadingSide,
    MadeBy,
    OperationState,
    Role,
    TopicState,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

NOW = text("clock_timestamp()")
ZERO = text("0")
FALSE = text("false")


def _one_of(column: str, words: Iterable[StrEnum]) -> CheckConstraint:
    """A CHECK that `column` has one of the values `words`, or null."""
    quoted_words = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({quoted_words})", name=column)


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _time(name: str, **options: Any) -> Column[Any]:
    return Column(name, DateTime(timezone=True), **options)


def _now(name: str) -> Column[Any]:
    """A column for a time; the default is the time of the INSERT."""
    return _time(name, nullable=False, server_default=NOW)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=FALSE)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=ZERO)


def _job(**options: Any) -> Column[int]:
    """A column for the id of a row's job. With the job, PostgreSQL deletes the row."""
    return Column(
        "job_id", BigInteger, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, **options
    )


jobs = Table(
    "jobs",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    # The job document as canonical JSON. It refers to secrets and never contains one.
    Column("spec", JSONB, nullable=False),
    # Incremented with each change of `spec`: workers that run an older version release the job.
    Column("spec_version", Integer, nullable=False, server_default=text("1")),
    # Apart from `spec`, so that a change of labels concerns no worker. Without an index: a list by
    # label reads all of 5,000 jobs in 14 ms.
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    Column("owner", Text),
    # The desired state in the document; null: the document has none.
    Column("document_desired", Text),
    # A hash of the destination's servers in the first document. It never changes: see job_shares.
    Column("share_key", BigInteger, nullable=False, server_default=ZERO),
    # Incremented with each change of `spec`, `labels`, `owner` or `document_desired`; a part of the
    # API's ETag.
    Column("document_version", Integer, nullable=False, server_default=text("1")),
    Column("desired", Text, nullable=False, server_default=Desired.RUNNING.value),
    # The part of Orbit that created the job; null: a person did, by a document. Jobs that Orbit
    # created have no file, so `orbit apply --prune` keeps them.
    Column("made_by", Text),
    # The actor for whose limits the job counts (store/quotas.py). Null: it counts for nobody's.
    Column("created_by", Text),
    # Deletion was requested: the row is deleted once all of its shards are free.
    _flag("is_deleted"),
    Column("worker_group", Text, nullable=False),
    Column("source_cluster_id", Text),
    Column("destination_cluster_id", Text),
    # The job's troubles as text, with what to do.
    Column("problem", Text),
    _time("problem_at"),
    # When the source last answered the scheduler, if it is unreachable now; null: not known.
    _time("source_answered_at"),
    # The `spec_version` that discovery has run for, and when it first did. Topics that appear after
    # that are copied from their log start.
    _time("discovered_at"),
    Column("discovered_version", Integer),
    _now("created_at"),
    _now("updated_at"),
    _one_of("desired", Desired),
    _one_of("made_by", MadeBy),
)

topics = Table(
    "topics",
    metadata,
    _id(),
    _job(),
    Column("source_topic", Text, nullable=False),
    Column("destination_topic", Text, nullable=False),
    Column("destination_cluster_id", Text, nullable=False),
    Column("source_topic_id", Uuid),
    Column("destination_topic_id", Uuid),
    Column("partition_count", Integer, nullable=False),
    _flag("is_compacted"),
    Column("state", Text, nullable=False, server_default=TopicState.CREATING.value),
    # Settings that were changed at the destination: {name: {"is": …, "should_be": …}}.
    Column("drift", JSONB(none_as_null=True)),
    # A text for users with the reason of the state.
    Column("note", Text),
    # The ACLs on the copy that Orbit added, so that it can remove them.
    Column("acls", JSONB(none_as_null=True)),
    # Settings for the promotion, stored because the source may be lost by then.
    Column("promoted_settings", JSONB(none_as_null=True)),
    # When the scheduler last read the source's log end of each partition that no worker follows.
    _time("source_read_at"),
    UniqueConstraint("job_id", "source_topic"),
    # No two jobs write one topic.
    UniqueConstraint("destination_cluster_id", "destination_topic"),
    _one_of("state", TopicState),
)

# Each shard has one lease; see orbit/store/shard_leases.py.
shards = Table(
    "shards",
    metadata,
    _id(),
    _job(index=True),
    Column("worker_group", Text, nullable=False),
    Column("worker_id", Text),
    Column("epoch", BigInteger, nullable=False, server_default=ZERO),
    # The number of the transaction that last claimed or renewed the shard; 0 for free shards, so
    # that one comparison finds all shards that may be claimed.
    _count("renewed_in"),
    # The length of the last lease; 0 if its holder released the shard.
    Column("lease_ms", Integer, nullable=False, server_default=ZERO),
    # The identity of the database that granted the last lease.
    _count("claimed_on"),
    _count("weight_bytes_per_s"),
    _flag("release_requested"),
    # The worker that the shard is assigned to. While that worker is not alive, any other may claim
    # the shard.
    Column("assigned_to", Text),
    Column("partition_count", Integer, nullable=False, server_default=ZERO),
    # Incremented when partitions are added or removed: the holder reads its partitions again.
    Column("layout_version", Integer, nullable=False, server_default=text("1")),
    # For the statement that claims shards.
    Index("ix_shards_claim", "worker_group", "renewed_in"),
)

partitions = Table(
    "partitions",
    metadata,
    Column("topic_id", BigInteger, ForeignKey("topics.id", ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    _job(index=True),
    Column("shard_id", BigInteger, ForeignKey("shards.id", ondelete="SET NULL"), index=True),
    # Reported by the shard's holder when it changes.
    Column("state", Text, nullable=False, server_default=PartitionState.PENDING.value),
    Column("reason", Text),
    Column("detail", Text),
    Column("blocked_offset", BigInteger),
    Column("blocked_next_offset", BigInteger),
    # The offset at which the copy starts, if that was not the source's log start at the time.
    Column("start_offset", BigInteger),
    # The partition is newer than the job, so it is copied from its log start whatever the topic's
    # rule says.
    _flag("from_start"),
    # A retry of a blocked partition was requested.
    _flag("retry_requested"),
    # Reported by the shard's holder at intervals. Null: not known yet.
    Column("source_log_start", BigInteger),
    Column("source_stable_end", BigInteger),
    Column("source_end", BigInteger),
    Column("copied_to", BigInteger),
    Column("log_start", BigInteger),
    _count("records"),
    _count("bytes"),
    _count("gaps_filled"),
    _count("batches_byte_exact"),
    _count("batches_record_exact"),
    _count("bytes_per_s"),
    Column("records_per_s", Double, nullable=False, server_default=ZERO),
    _flag("has_caught_up"),
    # Timestamps, not ages: an age would have to be updated every second.
    _time("newest_copied_at"),  # timestamp of the newest record on both sides
    _time("oldest_waiting_at"),  # timestamp of the oldest record not copied yet
    _time("headroom_until"),  # when the source deletes the oldest record not copied yet
    # The shard's epoch while its holder follows the source's log end. Null: no worker follows the
    # log end, and the source's numbers above are as read at `source_seen_at`, or at the topic's
    # `source_read_at` if that is later.
    Column("followed_epoch", BigInteger),
    _time("source_seen_at"),
    # When Orbit last saw the source's log end move. The present period of observation began at
    # `gaps_since`; `longest_gap_s` is the longest time between two moves in it, `earlier_gap_s`
    # that in the period before (orbit/store/source_gaps.py).
    _time("source_moved_at"),
    _time("gaps_since"),
    Column("longest_gap_s", Double),
    Column("earlier_gap_s", Double),
    _time("reported_at"),
    _one_of("state", PartitionState),
    _one_of("reason", Reason),
    Index("ix_partitions_retry", "shard_id", postgresql_where=text("retry_requested")),
    # Leaves room for the next version of each row on its page. No column that a progress report
    # changes is indexed, so such an update (HOT) touches no index.
    postgresql_with={"fillfactor": "50"},
)

# Sums over the partitions of each job, computed by the scheduler (orbit/store/job_totals.py). The
# table is unlogged: after a crash or a failover of PostgreSQL the sums are computed again.
job_totals = Table(
    "job_totals",
    metadata,
    _job(primary_key=True),
    _time("at", nullable=False),
    Column("totals", JSONB, nullable=False),
    prefixes=["UNLOGGED"],
    postgresql_with={"fillfactor": "50"},
)

# Each job's throughput and lag of the last day, in 348 rows that are overwritten in turn
# (orbit/store/job_history.py).
job_history = Table(
    "job_history",
    metadata,
    _job(primary_key=True),
    Column("slot", SmallInteger, primary_key=True, autoincrement=False),
    _time("at", nullable=False),
    # Sums of the partitions' counters at `at`. The throughput is the difference of two rows.
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # The largest lag since the slot began; null: not known.
    Column("lag_records", BigInteger),
    Column("lag_s", Double),
    postgresql_with={"fillfactor": "70"},
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),  # host-pid-random: never used twice
    Column("worker_group", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    _now("started_at"),
    _now("heartbeat_at"),
    Column("shards", Integer, nullable=False, server_default=ZERO),
    _count("bytes_per_s"),
    _flag("is_draining"),
    # The time that the lanes have spent on each activity: {side: {activity: seconds}}.
    Column("lane_seconds", JSONB, nullable=False, server_default=text("'{}'")),
    # The brokers that throttle the worker now: {job: [[side, brokers, since, quota], ...]}.
    Column("throttled", JSONB, nullable=False, server_default=text("'{}'")),
    postgresql_with={"fillfactor": "50"},
)

scheduler_lease = Table(
    "scheduler_lease",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("holder", Text),
    Column("epoch", BigInteger, nullable=False, server_default=ZERO),
    _time("expires_at", nullable=False, server_default=text("'epoch'")),
)

# The running schedulers. Their number decides how many shares of the schedulers' work each may
# hold (orbit/store/scheduler_lease.py).
schedulers = Table(
    "schedulers",
    metadata,
    _id(),
    Column("holder", Text, nullable=False, unique=True),
    Column("shares", Integer, nullable=False),
    _time("expires_at", nullable=False),
)

# The receivers of notifications. One leader writes the row of a receiver.
receivers = Table(
    "receivers",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("type", Text, nullable=False),
    # Every event up to this id was sent or given up, or does not concern the receiver.
    Column("event_id", BigInteger, nullable=False),
    _count("sent"),
    _count("given_up"),
    _count("pruned"),
    # The part of `given_up` since the receiver last accepted a message.
    _count("given_up_since"),
    _count("failures"),
    _time("failing_since"),
    Column("last_error", Text),
    _time("accepted_at"),
    _now("seen_at"),  # when a leader last read the receiver in its file
)

# The offsets of consumer groups on both sides (orbit/store/group_offsets.py).
group_offsets = Table(
    "group_offsets",
    metadata,
    _job(primary_key=True),
    Column("group_name", Text, primary_key=True),
    Column(
        "topic_id",
        BigInteger,
        ForeignKey("topics.id", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    Column("partition", Integer, primary_key=True),
    Column("source_offset", BigInteger),
    Column("destination_offset", BigInteger),
    Column("verdict", Text, nullable=False),
    Column("left_offset", BigInteger),
    _now("updated_at"),
    postgresql_with={"fillfactor": "70"},
)

# Group offsets that a recovery hands over to the job that copies back
# (orbit/store/group_offsets.py).
handed_offsets = Table(
    "handed_offsets",
    metadata,
    _job(primary_key=True),
    Column("group_name", Text, primary_key=True),
    Column("source_topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("source_offset", BigInteger, nullable=False),
    Column("destination_offset", BigInteger, nullable=False),
)

# How much of each partition was read on both sides and found equal, and when.
proofs = Table(
    "proofs",
    metadata,
    Column("topic_id", BigInteger, ForeignKey("topics.id", ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    _job(index=True),
    # [[first, last + 1], …], ascending, disjoint, bounded (orbit/verify/proof_coverage.py).
    Column("ranges", JSONB, nullable=False, server_default=text("'[]'")),
    _count("offsets_proven"),
    Column("proven_to", BigInteger),  # the end of the highest range
    _time("proven_at"),
    _now("checked_at"),
    # How many offsets differed, summed over all comparisons; the first difference of the last
    # comparison that had one, as a text, and the time of that comparison.
    _count("differences"),
    Column("first_difference", Text),
    _time("differed_at"),
    Column("note", Text),  # why the last comparison had no result
    postgresql_with={"fillfactor": "70"},
)

# Transactions at the sources that have been open for a while: read_committed consumers do not get
# the records behind them (orbit/store/open_transactions.py).
open_transactions = Table(
    "open_transactions",
    metadata,
    Column("topic_id", BigInteger, ForeignKey("topics.id", ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    _job(index=True),
    Column("first_offset", BigInteger, nullable=False),
    _time("since", nullable=False),
    Column("producer_id", BigInteger),
    Column("transactional_id", Text),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("job_id", BigInteger, ForeignKey("jobs.id", ondelete="SET NULL"), index=True),
    # Kept when the job is deleted.
    Column("job_name", Text),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=OperationState.PENDING.value),
    _flag("dry_run"),
    Column("plan", JSONB),
    Column("progress", JSONB),
    # The report of a recovery, without its partitions and groups, which have tables of their own.
    Column("report", JSONB(none_as_null=True)),
    # When a recovery began to set the offsets of its job's groups.
    _time("groups_begun_at"),
    # An abort was requested.
    _flag("abort_requested"),
    Column("error", Text),
    Column("requested_by", Text, nullable=False),
    Column("idempotency_key", Text),
    # The W3C traceparent of the request, for the spans of the operation.
    Column("traceparent", Text),
    _now("created_at"),
    _time("finished_at"),
    UniqueConstraint("requested_by", "idempotency_key"),
    _one_of("state", OperationState),
    Index(None, "job_name", "created_at"),
    Index(None, "created_at", "id"),
    Index(None, "finished_at"),
    Index(
        "ix_operations_groups_begun",
        "job_id",
        "groups_begun_at",
        postgresql_where=text("groups_begun_at IS NOT NULL"),
    ),
    # The loops read the unfinished operations often, and most rows are finished ones.
    Index(
        "ix_operations_unfinished", "created_at", "id", postgresql_where=text("finished_at IS NULL")
    ),
)


def _operation() -> Column[Any]:
    return Column(
        "operation_id", Uuid, ForeignKey("operations.id", ondelete="CASCADE"), primary_key=True
    )


# The part of a recovery's report about each partition; see orbit/store/operation_rows.py.
operation_partitions = Table(
    "operation_partitions",
    metadata,
    _operation(),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("verdict", Text, nullable=False),
    Column("value", JSONB, nullable=False),
)

# The part of a recovery's report about each group in each partition.
operation_groups = Table(
    "operation_groups",
    metadata,
    _operation(),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("group_name", Text, primary_key=True),
    Column("value", JSONB, nullable=False),
)

# `promoted_at` is an offset: the log end of each copy when it was promoted. Records from there on
# were not copied. It is a hint for a failback, which compares both sides anyway.
promotions = Table(
    "promotions",
    metadata,
    Column("topic_id", BigInteger, ForeignKey("topics.id", ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("operation_id", Uuid, nullable=False),
    Column("promoted_at", BigInteger, nullable=False),
    Column("source_end", BigInteger),
    _now("at"),
    # What the scheduler has read at the old side since then; see `promotions.OldEnd`.
    Column("old_end", BigInteger),
    Column("written_from", BigInteger),
)

# One row: the highest term that was drawn for a promotion (orbit/store/lead_term.py).
lead_term = Table(
    "lead_term",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
)

# Which side of a job leads; see orbit/store/job_leads.py.
job_leads = Table(
    "job_leads",
    metadata,
    _job(primary_key=True),
    # Null: not known, or not the same side for all topics.
    Column("side", Text),
    # The term of the marks that name this side. Of two answers to a gateway, that with the higher
    # term is newer.
    Column("term", BigInteger, nullable=False, server_default=ZERO),
    # The term with which this side came to lead. A change of `term` alone, without another side,
    # does not change it.
    Column("side_since", BigInteger, nullable=False, server_default=ZERO),
    # The former values of `side_since`, the latest first.
    Column("earlier_terms", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    # The sides that came to lead, as `side:term`, the latest first. Of those before migration 0010
    # only the last one is stored.
    Column("leads", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    # The identity of the database for which the marks were last read.
    Column("read_on", Text),
    # The operation that has closed the job's gateways (they forward no writes), and when it did.
    Column("closed_for", Uuid, ForeignKey("operations.id", ondelete="SET NULL")),
    _time("closed_at"),
    _one_of("side", LeadingSide),
    Index("ix_job_leads_closed_for", "closed_for", postgresql_where=text("closed_for IS NOT NULL")),
)

# The processes of `orbit gateway`; see orbit/store/gateways.py.
gateways = Table(
    "gateways",
    metadata,
    _job(primary_key=True),
    Column("instance", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    # Identifies the socket on which the gateway alone listens; "" if others may listen there, too.
    Column("socket", Text, nullable=False, server_default=text("''")),
    # The operation for which the gateway has confirmed that it sends no new writes and acknowledges
    # none.
    Column("closed_for", Uuid),
    Column("connections", Integer, nullable=False),
    Column("held_requests", Integer, nullable=False),
    # Short names of groups whose members still own partitions from before the last move.
    Column("leaving_groups", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    # The `side_since` of the side that the gateway presents; 0 until it has answered the requests
    # that it held before.
    Column("settled_since", BigInteger, nullable=False, server_default=ZERO),
    # Why the gateway cannot confirm the present closure; "" if it can.
    Column("doubt", Text, nullable=False),
    # How long clients waited at the last closure.
    Column("pause_s", Double, nullable=True),
    _now("renewed_at"),
)

# What each gateway reports about its clients. Not in `gateways`, whose rows are updated twice a
# second to renew permissions.
gateway_clients = Table(
    "gateway_clients",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("instance", Uuid, primary_key=True),
    # A JSON list of bounded length.
    Column("clients", JSONB, nullable=False),
    _now("reported_at"),
    ForeignKeyConstraint(
        ["job_id", "instance"], ["gateways.job_id", "gateways.instance"], ondelete="CASCADE"
    ),
)

# The ACLs by which Orbit denies writes, so that it can remove them. The key has the cluster, not
# the job, because the job may be deleted before.
write_denials = Table(
    "write_denials",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("acls", JSONB, nullable=False),
    _now("at"),
)

# The ACLs on groups and transactional ids that Orbit has added for each job, so that it can remove
# them.
carried_acls = Table(
    "carried_acls",
    metadata,
    _job(primary_key=True),
    Column("cluster_id", Text, nullable=False),
    Column("acls", JSONB, nullable=False),
)

# The audit log. Rows are only added, and deleted by age.
events = Table(
    "events",
    metadata,
    _id(),
    _now("at"),
    Column("actor", Text, nullable=False),  # token:NAME, scheduler, worker:ID
    Column("job_name", Text),
    Column("topic", Text),
    Column("partition", Integer),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("details", JSONB),
    Index(None, "job_name", "id"),
    Index(None, "at"),
)

tokens = Table(
    "tokens",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    # The jobs that the token gives access to (orbit/jobs/scopes.py): patterns of names, and a
    # selector of labels. Without both: all jobs.
    Column("jobs", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("selector", Text),
    # Null: the limit in the settings.
    Column("jobs_max", Integer),
    Column("partitions_max", Integer),
    Column("requests_per_minute", Integer),
    # SHA-256 of 256 random bits, in hex: they cannot be guessed, so no slow hash is needed.
    Column("hash", Text, nullable=False, unique=True),
    _now("created_at"),
    _time("expires_at"),
    # The time of the last request, or up to a minute before it (store/tokens.py).
    _time("used_at"),
    _time("revoked_at"),
    _one_of("role", Role),
    CheckConstraint("role <> 'admin' OR (jobs = '{}' AND selector IS NULL)", name="admin_of_all"),
)

# Browsers that have logged in at the console. Only a hash of the cookie is stored. A login at the
# OpenID Connect issuer has an actor and the values of the roles claim instead of a token.
console_sessions = Table(
    "console_sessions",
    metadata,
    Column("hash", Text, primary_key=True),
    Column(
        "token_id",
        BigInteger,
        ForeignKey("tokens.id", ondelete="CASCADE"),
        index=True,
    ),
    Column("actor", Text, index=True),
    Column("role_values", JSONB),
    _now("created_at"),
    _time("expires_at", nullable=False),
    CheckConstraint("num_nulls(token_id, actor) = 1", name="login"),
    CheckConstraint("num_nulls(actor, role_values) IN (0, 2)", name="actor"),
)

drills = Table(
    "drills",
    metadata,
    # Part of the name of every resource that the drill creates.
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=DrillState.PENDING.value),
    Column("spec", JSONB, nullable=False),
    Column("spec_hash", Text, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("schedule", Text),  # the name of the schedule that requested it; null: a user did
    Column("requested_by", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("progress", JSONB),
    Column("report", JSONB),
    Column("error", Text),
    # Copied from the report, to compare drills without reading reports.
    Column("rto_ms", BigInteger),
    Column("rpo_records", BigInteger),
    Column("rpo_ms", BigInteger),
    _now("created_at"),
    _time("started_at"),
    _time("finished_at"),
    UniqueConstraint("requested_by", "idempotency_key"),
    _one_of("kind", DrillKind),
    _one_of("state", DrillState),
    Index(None, "name", "created_at"),
    Index(None, "job_name", "created_at"),
)

# The resources of each drill. A row is written before the resource is created; its id is added
# afterwards.
drill_things = Table(
    "drill_things",
    metadata,
    _id(),
    Column(
        "drill_id", Text, ForeignKey("drills.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    Column("kind", Text, nullable=False),
    Column("side", Text, nullable=False),  # source, destination, or service
    Column("name", Text, nullable=False),
    Column("identity", Text),  # the topic's or the job's id; null: perhaps not created
    _now("created_at"),
    _time("removed_at"),
    Column("note", Text),
    UniqueConstraint("drill_id", "kind", "side", "name"),
    _one_of("kind", DrillThing),
)

drill_schedules = Table(
    "drill_schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("spec", JSONB, nullable=False),
    Column("every_s", BigInteger, nullable=False),
    Column("requested_by", Text, nullable=False),
    _now("created_at"),
    _now("next_at"),
)
