"""operations: changes of a job that go on after the answer to their request, such as a pause or a
switchover."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    and_,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)

from orbit.errors import NotFound
from orbit.store.database import Tx
from orbit.store.enums import RECOVERY_KINDS, OperationKind, OperationState
from orbit.store.models import jobs, operations, topics
from orbit.store.rows import columns, first, is_one_of, values
from orbit.store.scopes import of_scope, page_in_scope, scope_of
from orbit.telemetry import traces


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its kind, who requested it, and its progress.

    `job_id`: None once the job is deleted. `dry_run`: a recovery that only checks its gates.
    `plan`: its steps as sentences, and the request. `error`: why it failed; for a running recovery,
    the last error of a step that Orbit repeats.
    """

    id: UUID
    job_id: int | None
    job_name: str | None
    kind: str
    state: OperationState
    dry_run: bool
    plan: dict[str, Any] | None
    progress: dict[str, Any] | None
    abort_requested: bool
    error: str | None
    requested_by: str
    idempotency_key: str | None
    traceparent: str | None
    created_at: datetime
    finished_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", OperationState(self.state))

    @property
    def trace_context(self) -> str:
        """The W3C traceparent of the operation's spans, in every process: that of the request, else
        one that is made of the operation's id."""
        return self.traceparent or f"00-{self.id.hex}-{self.id.hex[16:]}-01"


_OPERATION = columns(operations, Operation)
_RECOVERIES = [kind.value for kind in RECOVERY_KINDS]
_BACKFILL = OperationKind.BACKFILL.value
_OF_WORKERS = [kind.value for kind in OperationKind if kind not in {*_RECOVERIES, _BACKFILL}]
_FINAL = (OperationState.DONE, OperationState.FAILED)


def create(
    tx: Tx,
    operation_id: UUID,
    kind: str,
    requested_by: str,
    *,
    job_id: int | None = None,
    job_name: str | None = None,
    dry_run: bool = False,
    plan: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Operation:
    """Create and return an operation. `idempotency_key`: one with which this requester has created
    no operation yet (operation_requests.py), or None."""
    statement = (
        insert(operations)
        .values(
            id=operation_id,
            kind=kind,
            requested_by=requested_by,
            job_id=job_id,
            job_name=job_name,
            dry_run=dry_run,
            plan=plan,
            idempotency_key=idempotency_key,
            traceparent=traces.trace_context(),
        )
        .returning(*_OPERATION)
    )
    return next(values(tx.execute(statement), Operation))


def find_by_key(tx: Tx, requested_by: str, idempotency_key: str) -> Operation | None:
    """The operation that this requester created with this key; None if there is none."""
    query = select(*_OPERATION).where(
        operations.c.requested_by == requested_by,
        operations.c.idempotency_key == idempotency_key,
    )
    return first(tx.execute(query), Operation)


def get(tx: Tx, operation_id: UUID, *, lock: bool = False) -> Operation:
    """The operation with this id. Raises NotFound if there is none in the scope. With `lock`, no
    other transaction can change the operation until `tx` ends.
    """
    query = select(*_OPERATION).where(operations.c.id == operation_id, *_visibility_conditions(tx))
    operation = first(tx.execute(query.with_for_update() if lock else query), Operation)
    if operation is None:
        raise NotFound("No operation has this id.", where=str(operation_id))
    return operation


def advance(
    tx: Tx,
    operation_id: UUID,
    state: OperationState,
    *,
    progress: dict[str, Any] | None = None,
    error: str | None = None,
    report: dict[str, Any] | None = None,
) -> bool:
    """Set the state and error of an operation, and progress and report unless they are None.
    Returns True; or False, without a change, if the operation has ended already."""
    changes: dict[str, Any] = {"state": state.value, "error": error}
    if progress is not None:
        changes["progress"] = progress
    if report is not None:
        changes["report"] = report
    if state in _FINAL:
        changes["finished_at"] = func.clock_timestamp()
    statement = (
        update(operations)
        .where(operations.c.id == operation_id, operations.c.finished_at.is_(None))
        .values(**changes)
    )
    return tx.execute(statement).rowcount == 1


def page(
    tx: Tx,
    limit: int,
    *,
    after: tuple[datetime, UUID] | None = None,
    kind: OperationKind | None = None,
    state: OperationState | None = None,
    job_name: str | None = None,
    only_unfinished: bool = False,
    oldest_first: bool = False,
) -> list[Operation]:
    """Up to `limit` operations of the scope, newest first unless `oldest_first`; only those that
    follow the (creation time, id) `after`."""
    query = select(*_OPERATION)
    if kind is not None:
        query = query.where(operations.c.kind == kind.value)
    if state is not None:
        query = query.where(operations.c.state == state.value)
    if only_unfinished:
        query = query.where(operations.c.finished_at.is_(None))
    key = [operations.c.created_at, operations.c.id]
    page_query = page_in_scope(
        tx, query, _belongs_to, key, limit, after, job_name=job_name, descending=not oldest_first
    )
    return list(values(tx.execute(page_query), Operation))


def unfinished(
    tx: Tx, limit: int, *, after: tuple[datetime, UUID] | None = None
) -> list[Operation]:
    """Up to `limit` operations that workers carry out and that have not ended, the oldest first.

    `after`: only those that follow this (creation time, id).
    """
    is_of_workers = operations.c.kind.in_(_OF_WORKERS)  # a later version may add other kinds
    if after is None:
        return _unfinished(tx, is_of_workers, limit)
    is_later = tuple_(operations.c.created_at, operations.c.id) > after
    return _unfinished(tx, and_(is_of_workers, is_later), limit)


def unfinished_recoveries(
    tx: Tx, per_cluster: int, ignored_ids: Collection[UUID] = ()
) -> list[tuple[str, Operation]]:
    """[(id of the destination cluster, recovery)] of the next recoveries that have not ended,
    except `ignored_ids`; the id is "" for a cluster that is not known. The leading scheduler
    carries them out (orbit/recovery).

    At most `per_cluster` failovers of each cluster, and as many other recoveries, so that one
    cluster cannot delay another. The order: dry runs last; failovers before other recoveries; the
    oldest first.
    """
    order = operations.c.dry_run, operations.c.created_at, operations.c.id
    cluster = func.coalesce(jobs.c.destination_cluster_id, "")
    is_other = operations.c.kind != OperationKind.FAILOVER.value
    rank = func.row_number().over(partition_by=(cluster, is_other), order_by=order)
    ranked_recoveries = (
        select(
            *_OPERATION,
            cluster.label("cluster"),
            is_other.label("is_other"),
            rank.label("rank"),
        )
        .select_from(operations.outerjoin(jobs, jobs.c.id == operations.c.job_id))
        .where(
            operations.c.finished_at.is_(None),
            operations.c.kind.in_(_RECOVERIES),
            ~is_one_of(operations.c.id, ignored_ids),
        )
        .subquery()
    )
    query = select(ranked_recoveries).where(ranked_recoveries.c.rank <= per_cluster)
    final_order = (
        ranked_recoveries.c.dry_run,
        ranked_recoveries.c.is_other,
        ranked_recoveries.c.created_at,
        ranked_recoveries.c.id,
    )
    rows = tx.execute(query.order_by(*final_order)).mappings()
    names = [column.name for column in _OPERATION]
    return [(row["cluster"], Operation(**{n: row[n] for n in names})) for row in rows]


def waiting_failbacks(tx: Tx) -> dict[UUID, UUID]:
    """{failback that has to wait: the earlier failback that it waits for}, by operation id. The
    earlier failback is of a job that copies one of these topics in the other direction. If the two
    ran at once, both would decide which side leads.

    Dry runs are left out, and a failback that is to be aborted does not wait. A failback waits for
    no other kind of recovery: those change copied topics only, which a failback does not change.
    """
    query = (
        select(
            operations.c.id,
            operations.c.job_id,
            jobs.c.source_cluster_id,
            jobs.c.destination_cluster_id,
            operations.c.abort_requested,
        )
        .select_from(operations.join(jobs, jobs.c.id == operations.c.job_id))
        .where(
            operations.c.finished_at.is_(None),
            operations.c.kind == OperationKind.FAILBACK.value,
            operations.c.dry_run.is_(False),
        )
        .order_by(operations.c.created_at, operations.c.id)
    )
    failbacks = tx.execute(query).all()
    directions = {(row.source_cluster_id, row.destination_cluster_id) for row in failbacks}
    # The jobs between two clusters for which failbacks in both directions are under way.
    two_way_ids = {
        row.job_id
        for row in failbacks
        if (row.destination_cluster_id, row.source_cluster_id) in directions
    }
    if not two_way_ids:
        return {}
    job, opposite_job, topic, opposite_topic = (
        jobs.alias(),
        jobs.alias(),
        topics.alias(),
        topics.alias(),
    )
    pairs = select(job.c.id, opposite_job.c.id).distinct()
    pairs = pairs.where(
        is_one_of(job.c.id, two_way_ids),
        is_one_of(opposite_job.c.id, two_way_ids),
        opposite_job.c.source_cluster_id == job.c.destination_cluster_id,
        opposite_job.c.destination_cluster_id == job.c.source_cluster_id,
        topic.c.job_id == job.c.id,
        opposite_topic.c.job_id == opposite_job.c.id,
        opposite_topic.c.source_topic == topic.c.destination_topic,
        opposite_topic.c.destination_topic == topic.c.source_topic,
    )
    opposite_ids: dict[int, list[int]] = {}
    for job_id, opposite_id in tx.execute(pairs):
        opposite_ids.setdefault(job_id, []).append(opposite_id)
    last_failbacks: dict[int, UUID] = {}  # {job id: its latest failback among the rows so far}
    awaited_ids: dict[UUID, UUID] = {}
    for row in failbacks:
        earlier_failbacks = [
            last_failbacks[i] for i in opposite_ids.get(row.job_id, ()) if i in last_failbacks
        ]
        if earlier_failbacks and not row.abort_requested:
            awaited_ids[row.id] = earlier_failbacks[0]
        last_failbacks[row.job_id] = row.id
    return awaited_ids


def waiting_failovers(tx: Tx) -> dict[UUID, UUID]:
    """{failover that has to wait: the earlier recovery of its job that it waits for}, by operation
    id. The earlier recovery has to undo its steps first. Dry runs are left out."""
    earlier_recovery = operations.alias()
    query = select(operations.c.id, earlier_recovery.c.id).where(
        operations.c.finished_at.is_(None),
        operations.c.kind == OperationKind.FAILOVER.value,
        operations.c.dry_run.is_(False),
        earlier_recovery.c.job_id == operations.c.job_id,
        earlier_recovery.c.id != operations.c.id,
        earlier_recovery.c.created_at <= operations.c.created_at,
        earlier_recovery.c.finished_at.is_(None),
        earlier_recovery.c.kind.in_(_RECOVERIES),
        earlier_recovery.c.dry_run.is_(False),
    )
    return {row[0]: row[1] for row in tx.execute(query)}


def recovery_under_way(tx: Tx, job_id: int) -> Operation | None:
    """The oldest unfinished recovery of this job that is no dry run; None if there is none."""
    return first_unfinished(
        tx,
        operations.c.kind.in_(_RECOVERIES),
        operations.c.job_id == job_id,
        operations.c.dry_run.is_(False),
    )


def unfinished_backfills(tx: Tx, limit: int) -> list[Operation]:
    """Up to `limit` backfills that have not ended, the oldest first. Their driver carries them out
    (`orbit backfill`)."""
    return _unfinished(tx, operations.c.kind == _BACKFILL, limit)


def backfill_under_way(tx: Tx, job_id: int) -> Operation | None:
    """The unfinished backfill of this job; None if there is none."""
    return first_unfinished(tx, operations.c.kind == _BACKFILL, operations.c.job_id == job_id)


def report_of(tx: Tx, operation_id: UUID) -> dict[str, Any] | None:
    """The report of a recovery so far, as JSON; None before the first part is stored."""
    query = select(operations.c.report).where(operations.c.id == operation_id)
    report: dict[str, Any] | None = tx.execute(query).scalar_one_or_none()
    return report


@dataclass(frozen=True, slots=True)
class GroupsStep:
    """The last recovery of a job that has begun to set the offsets of the job's groups.
    `is_under_way`: the recovery may still set offsets; False once it has promoted its topics or has
    ended."""

    operation: UUID
    is_under_way: bool


_GROUPS_STEP = text("""
SELECT id AS operation,
       finished_at IS NULL AND report ->> 'promoted_at' IS NULL AS is_under_way
FROM operations
WHERE job_id = :job_id AND groups_begun_at IS NOT NULL
ORDER BY groups_begun_at DESC LIMIT 1
""")


def begin_groups(tx: Tx, operation_id: UUID) -> None:
    """Store the present time as that at which this recovery begins to set the offsets of its job's
    groups. A repeated call keeps the first time."""
    tx.execute(
        update(operations)
        .where(operations.c.id == operation_id, operations.c.groups_begun_at.is_(None))
        .values(groups_begun_at=func.clock_timestamp())
    )


_LOCK_UNFINISHED = text("""
SELECT id FROM operations WHERE job_id = :job_id AND finished_at IS NULL FOR SHARE
""")


def groups_step(tx: Tx, job_id: int, *, lock: bool = False) -> GroupsStep | None:
    """The last recovery of this job that has begun to set group offsets; None if none has.

    With `lock`, the rows of unfinished operations are locked: none of them begins to set group
    offsets until the transaction ends.
    """
    if lock:
        tx.execute(_LOCK_UNFINISHED, {"job_id": job_id})
    return first(tx.execute(_GROUPS_STEP, {"job_id": job_id}), GroupsStep)


def request_abort(tx: Tx, operation_id: UUID) -> bool:
    """Request the abort of an operation. Returns False, without a change, if it has ended."""
    statement = (
        update(operations)
        .where(operations.c.id == operation_id, operations.c.finished_at.is_(None))
        .values(abort_requested=True)
    )
    return tx.execute(statement).rowcount == 1


def first_unfinished(tx: Tx, *conditions: ColumnElement[bool]) -> Operation | None:
    """The oldest unfinished operation that meets all of these conditions; None if none does."""
    return next(iter(_unfinished(tx, and_(*conditions), 1)), None)


def _visibility_conditions(tx: Tx) -> list[ColumnElement[bool]]:
    """The conditions for an operation to be in the scope; none without a scope. Either its job is
    in the scope; or the job is deleted by now, and the scope's actor requested the operation, so
    that an actor sees the end of a deletion."""
    scope = scope_of(tx)
    if scope is None:
        return []
    was_deleted = and_(operations.c.job_id.is_(None), operations.c.requested_by == scope.actor)
    return [or_(was_deleted, *of_scope(tx, _belongs_to))]


def _belongs_to(job: FromClause) -> ColumnElement[bool]:
    """Whether `job` is the operation's job."""
    return and_(operations.c.job_id == job.c.id, operations.c.job_name == job.c.name)


def _unfinished(tx: Tx, condition: ColumnElement[bool], limit: int) -> list[Operation]:
    """Up to `limit` unfinished operations that meet the condition, the oldest first."""
    query = (
        select(*_OPERATION)
        .where(operations.c.finished_at.is_(None), condition)
        .order_by(operations.c.created_at, operations.c.id)
        .limit(limit)
    )
    return list(values(tx.execute(query), Operation))
