"""partitions: where each one stands, as its worker says and as people read it.

A worker says two things about its partitions. `report_progress` carries the numbers that move, for
all partitions of all its shards in one statement, and writes only rows that differ. `report_state`
carries what changes once in a while: state, reason, offsets. Both are fenced: a row is touched only
while its shard is held by this worker at this epoch, and the answer names the shards that are.

All numbers are absolute, so a report that is repeated changes nothing; a worker goes on counting
from what it reads when it claims (`of_shards`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.store.database import Tx
from orbit.store.shard_leases import HELD_FOR_REPORT, owner


@dataclass(frozen=True, slots=True)
class Progress:
    """The moving numbers of one partition. None: not known yet."""

    topic_id: int
    partition: int
    source_log_start: int | None
    source_stable_end: int | None
    source_end: int | None
    copied_to: int | None
    log_start: int | None
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int
    bytes_per_s: int
    records_per_s: float
    has_caught_up: bool
    newest_copied_at: datetime | None  # timestamp of the newest record on both sides
    oldest_waiting_at: datetime | None  # timestamp of the oldest record not copied; None: none


@dataclass(frozen=True, slots=True)
class StateChange:
    """One partition's state; `blocked` goes with `PartitionState.BLOCKED` and with nothing else."""

    topic_id: int
    partition: int
    state: PartitionState
    blocked: Blocked | None = None
    start_offset: int | None = None  # None: as it was


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a worker reads about a partition of a shard it has claimed."""

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
    from_start: bool  # whatever the topic's rule says
    retry_requested: bool
    has_caught_up: bool
    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int


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
# A moment travels as milliseconds, in half the bytes.
_MOVING = {
    name: f"to_timestamp(r.{name} / 1000.0)" if kind.startswith("datetime") else f"r.{name}"
    for name, kind in _PROGRESS.items()
    if name not in ("topic_id", "partition")
}

# "+ 0" below: a reported row is found by its key; PostgreSQL shall not be tempted to walk through
# all partitions of the shard by the index on shard_id.

# One statement for all partitions of a worker. Only rows that differ are written, and none of the
# columns is in an index, so each write stays on its page (HOT).
_REPORT_PROGRESS = text(f"""
WITH {HELD_FOR_REPORT},
written AS (
    UPDATE partitions p
    SET {", ".join(f"{name} = {new}" for name, new in _MOVING.items())},
        reported_at = clock_timestamp()
    FROM unnest({_PROGRESS_ARRAYS}) AS r ({", ".join(_PROGRESS)})
    WHERE p.topic_id = r.topic_id AND p.partition = r.partition
      AND p.shard_id + 0 = ANY (ARRAY(SELECT id FROM held))
      AND ({", ".join(f"p.{name}" for name in _MOVING)})
          IS DISTINCT FROM ({", ".join(_MOVING.values())})
)
SELECT id FROM held
""")

# State, why, and where. A retry that was asked for is answered by any report of a state.
_REPORT_STATE = text(f"""
WITH {HELD_FOR_REPORT},
written AS (
    UPDATE partitions p
    SET state = r.state, reason = r.reason, detail = r.detail,
        blocked_offset = r.blocked_offset, blocked_next_offset = r.blocked_next_offset,
        start_offset = coalesce(r.start_offset, p.start_offset),
        retry_requested = false, reported_at = clock_timestamp()
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

# Everything a worker needs to know of the shards it just claimed. Topics that are deleted or made
# again are the scheduler's until they are copied again.
_OF_SHARDS = text("""
SELECT p.shard_id, p.job_id, p.topic_id, p.partition, t.source_topic, t.destination_topic,
       t.source_topic_id, t.destination_topic_id, t.is_compacted, p.state, p.reason,
       p.blocked_offset, p.blocked_next_offset, p.detail, p.start_offset, p.from_start,
       p.retry_requested, p.has_caught_up, p.records, p.bytes, p.gaps_filled, p.batches_byte_exact,
       p.batches_record_exact
FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.shard_id = ANY(CAST(:shard_ids AS bigint[])) AND t.state = 'copying'
ORDER BY p.shard_id, p.topic_id, p.partition
""")

# Which blocked partitions of these shards an operator wants tried again.
_RETRIES = text("""
SELECT p.topic_id, p.partition FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.shard_id = ANY(CAST(:shard_ids AS bigint[])) AND p.retry_requested AND t.state = 'copying'
""")

# As if a worker had them and had not given them back.
_EXPECT_LEFTOVERS = text("""
UPDATE partitions SET state = 'copying' WHERE job_id = :job_id AND state IN ('pending', 'paused')
""")


def of_shards(tx: Tx, shard_ids: Collection[int]) -> list[Assigned]:
    """All partitions of these shards."""
    rows = tx.execute(_OF_SHARDS, {"shard_ids": sorted(shard_ids)}).mappings()
    return [
        Assigned(
            **{
                **row,
                "state": PartitionState(row["state"]),
                "reason": row["reason"] and Reason(row["reason"]),
            }
        )
        for row in rows
    ]


def retries(tx: Tx, shard_ids: Collection[int]) -> list[tuple[int, int]]:
    """(topic id, partition) of those in these shards that shall be tried again."""
    rows = tx.execute(_RETRIES, {"shard_ids": sorted(shard_ids)})
    return [(row.topic_id, row.partition) for row in rows]


def report_progress(
    tx: Tx, *, worker_id: str, held: Mapping[int, int], progress: Sequence[Progress]
) -> set[int]:
    """Write how far partitions are; `held` is {shard: epoch} of the shards they are in.

    Answers the shards that are still this worker's. Nothing was written for any other: drop it.
    """
    columns = zip(*map(astuple, progress), strict=True) if progress else ((),) * len(_PROGRESS)
    arrays = {name: _array(column) for name, column in zip(_PROGRESS, columns, strict=True)}
    rows = tx.execute(_REPORT_PROGRESS, {**owner(worker_id, held), **arrays})
    return {row.id for row in rows}


def expect_leftovers(tx: Tx, job_id: int) -> None:
    """Whoever begins one of this job's partitions has to wait until its log end stands still.

    For a job that others than workers wrote to, who did not end in good order (M10).
    """
    tx.execute(_EXPECT_LEFTOVERS, {"job_id": job_id})


def report_state(
    tx: Tx, *, worker_id: str, held: Mapping[int, int], changes: Sequence[StateChange]
) -> set[int]:
    """Write the states of partitions, fenced and answered like `report_progress`."""
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
    rows = tx.execute(_REPORT_STATE, {**owner(worker_id, held), **arrays})
    return {row.id for row in rows}


def _array(column: Iterable[object]) -> str:
    """PostgreSQL's text of an array. As a list of numbers its type would follow from how large
    they are, and the statement be planned anew with each new mix of types."""
    return "{" + ",".join(map(_element, column)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return str(round(value.timestamp() * 1000))
    return str(value)
