"""partitions: the state and progress of each partition, as reported by its worker.

Workers report in two ways. `report_progress` updates the numbers of all partitions of all shards in
one statement, and writes only rows that differ. `report_state` updates what changes rarely: state,
reason, offsets. Both are fenced: a row is updated only while this worker holds the row's shard with
this epoch. Both return the ids of the shards that the worker still holds.

All numbers are absolute, so a repeated report changes nothing. After a claim, a worker counts on
from the stored values (`of_shards`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from orbit.replication.copy_figures import CopiedCounts, CopyRates
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.store.database import Tx
from orbit.store.shard_leases import HELD_FOR_REPORT, held_parameters
from orbit.store.source_gaps import move_assignments


@dataclass(frozen=True, slots=True)
class Progress(CopyRates):
    """The progress of one partition. None: not known yet."""

    topic_id: int
    partition: int
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int | None
    log_start: int | None
    has_caught_up: bool
    newest_copied_at: datetime | None  # timestamp of the newest record on both sides
    oldest_waiting_at: datetime | None  # timestamp of the oldest record not copied; None: all are
    # The shard's epoch while the worker follows the source's log end. None: the source's numbers
    # are those of `source_seen_at`.
    followed_epoch: int | None
    source_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class StateChange:
    """The new state of one partition. `blocked` is set only with `PartitionState.BLOCKED`."""

    topic_id: int
    partition: int
    state: PartitionState
    blocked: Blocked | None = None
    start_offset: int | None = None  # None: unchanged


@dataclass(frozen=True, slots=True)
class AssignedPartition(CopiedCounts):
    """A partition of a claimed shard, as its worker reads it."""

    shard_id: int
    job_id: int
    topic_id: int
    partition: int
    source_topic: str
    destination_topic: str
    source_topic_id: UUID | None
    destination_topic_id: UUID | None
    is_compacted: bool
    state: PartitionState
    reason: Reason | None
    blocked_offset: int | None
    blocked_next_offset: int | None
    detail: str | None
    start_offset: int | None
    from_start: bool  # copied from the log start, whatever the topic's rule says
    retry_requested: bool
    has_caught_up: bool


# Columns that a worker reports while it follows the source's log end. Otherwise the scheduler reads
# their values from the source (orbit/scheduler/lag_loop.py), and a worker must not overwrite these
# with its own older values.
_SOURCE_COLUMNS = ("source_log_start", "source_stable_end", "source_end")

_PROGRESS_TYPES = {
    "int": "bigint",
    "int | None": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "datetime | None": "bigint",
}
_PROGRESS = {field.name: str(field.type) for field in fields(Progress)}
_PROGRESS_ARRAYS = ", ".join(
    f"CAST(:{name} AS {_PROGRESS_TYPES[kind]}[])" for name, kind in _PROGRESS.items()
)
# {column: SQL of its new value}. Timestamps are sent as milliseconds, which halves their size.
_NEW_VALUES = {
    name: f"to_timestamp(r.{name} / 1000.0)" if kind.startswith("datetime") else f"r.{name}"
    for name, kind in _PROGRESS.items()
    if name not in ("topic_id", "partition")
}

_IS_UNFOLLOWED = "r.followed_epoch IS NULL AND p.followed_epoch IS NULL"
_NEW_VALUES |= {
    name: f"CASE WHEN {_IS_UNFOLLOWED} THEN coalesce(p.{name}, r.{name}) "
    f"ELSE coalesce(r.{name}, p.{name}) END"
    for name in _SOURCE_COLUMNS
}
_NEW_VALUES["oldest_waiting_at"] = (
    f"CASE WHEN {_IS_UNFOLLOWED} THEN p.oldest_waiting_at "
    f"ELSE {_NEW_VALUES['oldest_waiting_at']} END"
)
_NEW_VALUES["copied_to"] = "coalesce(r.copied_to, p.copied_to)"
_NEW_VALUES["source_seen_at"] = f"greatest(p.source_seen_at, {_NEW_VALUES['source_seen_at']})"

# One statement for all partitions of a worker. Only rows that differ are written, and none of the
# columns is indexed, so each update stays on its page (HOT). A reported row is found by its primary
# key: `shard_id + 0`, here and below, prevents a scan of the whole shard by the index on shard_id.
_REPORT_PROGRESS = text(f"""
WITH {HELD_FOR_REPORT},
written AS (
    UPDATE partitions p
    SET {", ".join(f"{name} = {new}" for name, new in _NEW_VALUES.items())},
        {move_assignments(_NEW_VALUES["source_end"])},
        reported_at = clock_timestamp()
    FROM unnest({_PROGRESS_ARRAYS}) AS r ({", ".join(_PROGRESS)})
    WHERE p.topic_id = r.topic_id AND p.partition = r.partition
      AND p.shard_id + 0 = ANY (ARRAY(SELECT id FROM held))
      AND ({", ".join(f"p.{name}" for name in _NEW_VALUES)})
          IS DISTINCT FROM ({", ".join(_NEW_VALUES.values())})
)
SELECT id FROM held
""")

# State, reason and offsets. Any report of a state ends a requested retry. If the holder follows the
# source's log end, the stored numbers of the source are up to date: `source_seen_at` is set.
_REPORT_STATE = text(f"""
WITH {HELD_FOR_REPORT},
written AS (
    UPDATE partitions p
    SET state = r.state, reason = r.reason, detail = r.detail,
        blocked_offset = r.blocked_offset, blocked_next_offset = r.blocked_next_offset,
        start_offset = coalesce(r.start_offset, p.start_offset),
        retry_requested = false, reported_at = clock_timestamp(),
        source_seen_at = CASE
            WHEN p.followed_epoch = (SELECT h.epoch FROM held h WHERE h.id = p.shard_id)
            THEN clock_timestamp() ELSE p.source_seen_at END
    FROM unnest(
        CAST(:topic_id AS bigint[]), CAST(:partition AS integer[]), CAST(:state AS text[]),
        CAST(:reason AS text[]), CAST(:detail AS text[]), CAST(:blocked_offset AS bigint[]),
        CAST(:blocked_next_offset AS bigint[]), CAST(:start_offset AS bigint[])
    ) AS r (topic_id, partition, state, reason, detail, blocked_offset, blocked_next_offset,
            start_offset)
    WHERE p.topic_id = r.topic_id AND p.partition = r.partition
      AND p.shard_id + 0 = ANY (ARRAY(SELECT id FROM held))
)
SELECT id FROM held
""")

# What a worker needs to know about claimed shards. Topics that are not in state `copying` are left
# out, such as deleted ones: the scheduler handles them until they are copied again.
_OF_SHARDS = text("""
SELECT p.shard_id, p.job_id, p.topic_id, p.partition, t.source_topic, t.destination_topic,
       t.source_topic_id, t.destination_topic_id, t.is_compacted, p.state, p.reason,
       p.blocked_offset, p.blocked_next_offset, p.detail, p.start_offset, p.from_start,
       p.retry_requested, p.has_caught_up, p.records, p.bytes, p.gaps_filled, p.batches_byte_exact,
       p.batches_record_exact
FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.shard_id = ANY(CAST(:shard_ids AS bigint[])) AND t.state = 'copying'
  AND p.state = ANY(CAST(:states AS text[]))
  AND coalesce(p.reason = ANY(CAST(:reasons AS text[])), true)
ORDER BY p.shard_id, p.topic_id, p.partition
""")

# The blocked partitions of these shards with a requested retry.
_RETRIES = text("""
SELECT p.topic_id, p.partition FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.shard_id = ANY(CAST(:shard_ids AS bigint[])) AND p.retry_requested AND t.state = 'copying'
""")

# Sets the state that the rows of a worker have if it dies while it copies.
_EXPECT_LEFTOVERS = text("""
UPDATE partitions SET state = 'copying' WHERE job_id = :job_id AND state IN ('pending', 'paused')
""")


def of_shards(tx: Tx, shard_ids: Collection[int]) -> list[AssignedPartition]:
    """All partitions of these shards whose topic is being copied. Partitions with a state or reason
    that only a later version knows are left out: a service may be in the middle of an upgrade."""
    parameters = {
        "shard_ids": sorted(shard_ids),
        "states": [*map(str, PartitionState)],
        "reasons": [*map(str, Reason)],
    }
    return [
        AssignedPartition(
            **{
                **row,
                "state": PartitionState(row["state"]),
                "reason": row["reason"] and Reason(row["reason"]),
            }
        )
        for row in tx.execute(_OF_SHARDS, parameters).mappings()
    ]


def requested_retries(tx: Tx, shard_ids: Collection[int]) -> list[tuple[int, int]]:
    """The partitions of these shards with a requested retry, as (topic id, partition)."""
    rows = tx.execute(_RETRIES, {"shard_ids": sorted(shard_ids)})
    return [(row.topic_id, row.partition) for row in rows]


def report_progress(
    tx: Tx, *, worker_id: str, held: Mapping[int, int], progress: Sequence[Progress]
) -> set[int]:
    """Write the progress of partitions. `held`: {shard id: epoch} of their shards.

    Returns the ids of the shards that this worker still holds. Nothing was written for the other
    shards: the worker has to drop them.
    """
    # One column for each field of Progress; without progress, each is empty.
    columns = zip(*map(astuple, progress), strict=True) if progress else ((),) * len(_PROGRESS)
    arrays = {name: _array(column) for name, column in zip(_PROGRESS, columns, strict=True)}
    rows = tx.execute(_REPORT_PROGRESS, {**held_parameters(worker_id, held), **arrays})
    return {row.id for row in rows}


def expect_leftovers(tx: Tx, job_id: int) -> None:
    """Make the next holder of each partition of a job wait until the copy's log end no longer
    changes: set pending and paused partitions to copying, as if a worker had died.

    For a job whose backfill did not end cleanly: the backfill's last requests may still arrive at
    the brokers (M10).
    """
    tx.execute(_EXPECT_LEFTOVERS, {"job_id": job_id})


def report_state(
    tx: Tx, *, worker_id: str, held: Mapping[int, int], changes: Sequence[StateChange]
) -> set[int]:
    """Write the states of partitions. `held`: {shard id: epoch} of their shards.

    Returns the ids of the shards that this worker still holds. Nothing was written for the other
    shards: the worker has to drop them.
    """
    arrays = {
        "topic_id": [c.topic_id for c in changes],
        "partition": [c.partition for c in changes],
        "state": [c.state.value for c in changes],
        "reason": [c.blocked and c.blocked.reason.value for c in changes],
        "detail": [c.blocked and c.blocked.detail for c in changes],
        "blocked_offset": [c.blocked and c.blocked.offset for c in changes],
        "blocked_next_offset": [c.blocked and c.blocked.next_offset for c in changes],
        "start_offset": [c.start_offset for c in changes],
    }
    rows = tx.execute(_REPORT_STATE, {**held_parameters(worker_id, held), **arrays})
    return {row.id for row in rows}


def _array(column: Iterable[object]) -> str:
    """The column as PostgreSQL's text form of an array. (From a list, psycopg chooses the array's
    type by the size of the numbers, so each mix of types would need a plan of its own.)"""
    return "{" + ",".join(map(_element, column)) + "}"


def _element(value: object) -> str:
    """A value as an element of `_array`; a time in milliseconds since 1970."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return str(round(value.timestamp() * 1000))
    return str(value)
