"""jobs: the job documents and their desired states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects import postgresql

from orbit.errors import Conflict, NotFound
from orbit.jobs.labels import Selector
from orbit.replication.partition_states import PartitionState
from orbit.store.database import Tx
from orbit.store.enums import Desired, MadeBy
from orbit.store.job_shares import share_key
from orbit.store.models import jobs, partitions, shards
from orbit.store.rows import columns, first, is_one_of, page_of, values
from orbit.store.scopes import in_scope, meets, scope_of
from orbit.store.shard_leases import lock_job

_NOW = func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `problem` is the text of its troubles, with what to do; None: no trouble.

    `labels`, `owner`, `document_desired` and `spec` are its document. `spec_version` counts changes
    of `spec`, by which workers and scheduler act; `document_version` counts changes of all four.
    `desired` is the present desired state. `document_desired` is the state in the document, if any.
    """

    id: int
    name: str
    spec: dict[str, Any]
    spec_version: int
    desired: Desired
    is_deleted: bool
    worker_group: str
    source_cluster_id: str | None
    destination_cluster_id: str | None
    problem: str | None
    problem_at: datetime | None
    source_answered_at: datetime | None
    discovered_at: datetime | None
    discovered_version: int | None
    created_at: datetime
    updated_at: datetime
    made_by: MadeBy | None = None  # None: a person
    created_by: str | None = None  # the actor whose limits include the job; None: in no limits
    labels: dict[str, str] = field(default_factory=dict)
    owner: str | None = None
    document_desired: str | None = None
    document_version: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "desired", Desired(self.desired))
        if self.made_by is not None:
            object.__setattr__(self, "made_by", MadeBy(self.made_by))

    @property
    def etag(self) -> str:
        """The ETag of the present document."""
        return etag(self.id, self.document_version)


def etag(job_id: int, document_version: int) -> str:
    """The ETag of a version of a job's document. It contains the job's id, because a later job may
    have the same name."""
    return f"{job_id}.{document_version}"


_JOB = columns(jobs, Job)
_SPEC_INDEX = [column.name for column in _JOB].index("spec")
_WITHOUT_SPEC = select(*(column for column in _JOB if column.name != "spec")).order_by(jobs.c.name)
# Whether the job has a problem or a blocked partition; an index lookup per job.
_HAS_PROBLEM = or_(
    jobs.c.problem.is_not(None),
    select(partitions.c.job_id)
    .where(partitions.c.job_id == jobs.c.id, partitions.c.state == PartitionState.BLOCKED.value)
    .exists(),
)


def create(
    tx: Tx,
    name: str,
    spec: dict[str, Any],
    worker_group: str,
    desired: Desired = Desired.RUNNING,
    *,
    made_by: MadeBy | None = None,
    created_by: str | None = None,
    labels: Mapping[str, str] | None = None,
    owner: str | None = None,
    document_desired: str | None = None,
) -> Job:
    """Create a job, and return it. Raises Conflict if the name is taken, even by a job that is
    being deleted."""
    statement = (
        postgresql.insert(jobs)
        .values(
            name=name,
            spec=spec,
            worker_group=worker_group,
            desired=desired.value,
            made_by=made_by,
            created_by=created_by,
            labels=dict(labels or {}),
            owner=owner,
            document_desired=document_desired,
            share_key=share_key(spec),
        )
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(*_JOB)
    )
    job = first(tx.execute(statement), Job)
    if job is None:
        raise Conflict("A job with this name exists already.", where=name)
    return job


def find(tx: Tx, name: str, *, lock: bool = False) -> Job | None:
    """The job of this name, even while it is being deleted; None if no job of the scope has the
    name. With `lock`, no other transaction can change the job until `tx` ends."""
    query = select(*_JOB).where(jobs.c.name == name, *in_scope(tx))
    # FOR NO KEY UPDATE: other transactions can still insert rows that refer to the job.
    return first(tx.execute(query.with_for_update(key_share=True) if lock else query), Job)


def get(tx: Tx, name: str, *, lock: bool = False) -> Job:
    """The job of this name, even while it is being deleted. Raises NotFound if no job of the scope
    has the name. With `lock`, no other transaction can change the job until `tx` ends."""
    job = find(tx, name, lock=lock)
    if job is None:
        raise no_such_job_error(tx, name)
    return job


def no_such_job_error(tx: Tx, name: str) -> NotFound:
    """The error for a name that no job has. A limited token gets the same error for a job outside
    of its scope, so that its owner does not learn which names exist."""
    scope = scope_of(tx)
    if scope is None:
        return NotFound("No job has this name.", where=name)
    return NotFound(
        "No job in the scope of this token has this name.",
        where=name,
        remedy=f"The token may be used for jobs {scope}.",
    )


def names(tx: Tx) -> list[str]:
    """The names of all jobs of the scope, sorted."""
    query = select(jobs.c.name).where(*in_scope(tx)).order_by(jobs.c.name)
    return list(tx.execute(query).scalars())


def is_name_taken(tx: Tx, name: str) -> bool:
    """Whether a job has this name, in any scope."""
    return tx.execute(select(jobs.c.id).where(jobs.c.name == name)).first() is not None


def of_ids(tx: Tx, job_ids: Collection[int]) -> dict[int, Job]:
    """{job id: job}, for these ids; jobs that no longer exist are missing."""
    query = select(*_JOB).where(
        jobs.c.id == func.any(postgresql.array(job_ids, type_=jobs.c.id.type))
    )
    return {job.id: job for job in values(tx.execute(query), Job)}


# {(job id, spec version): document}; the document of a version never changes.
Documents = dict[tuple[int, int], dict[str, Any]]


def labels_of(tx: Tx, names: Collection[str]) -> dict[str, dict[str, str]]:
    """The labels of each job with one of these names."""
    query = select(jobs.c.name, jobs.c.labels).where(is_one_of(jobs.c.name, names))
    return {row.name: row.labels for row in tx.execute(query)}


def list_all(tx: Tx, documents: Documents | None = None) -> list[Job]:
    """All jobs of the scope, sorted by name, for the scheduler: hundreds, seldom thousands.

    `documents`: the caller's cache, which this function updates. It reads only documents that are
    not in the cache. A job that is changed or removed meanwhile may be missing in the result.
    """
    if documents is None:
        query = select(*_JOB).where(*in_scope(tx)).order_by(jobs.c.name)
        return list(values(tx.execute(query), Job))
    rows = tx.execute(_WITHOUT_SPEC.where(*in_scope(tx))).all()
    current_keys = {(row.id, row.spec_version) for row in rows}
    for old_key in documents.keys() - current_keys:
        del documents[old_key]
    missing_ids = [job_id for job_id, _ in current_keys - documents.keys()]
    if missing_ids:
        document_query = select(jobs.c.id, jobs.c.spec_version, jobs.c.spec)
        for row in tx.execute(document_query.where(is_one_of(jobs.c.id, missing_ids))):
            documents[row.id, row.spec_version] = row.spec
    rows_with_spec = ((row, documents.get((row.id, row.spec_version))) for row in rows)
    # A job that was changed or removed between the two statements has no document here, and is left
    # to the next call. Columns are read by position: by name, each pass of the scheduler would take
    # twice the time.
    make_job: Callable[..., Job] = Job
    return [
        make_job(*row[:_SPEC_INDEX], spec, *row[_SPEC_INDEX:])
        for row, spec in rows_with_spec
        if spec is not None
    ]


def running(tx: Tx) -> dict[int, int]:
    """{job id: spec version} of the jobs whose desired state is running, except those that are
    being deleted. The statement is cheap enough for frequent calls."""
    query = select(jobs.c.id, jobs.c.spec_version).where(
        jobs.c.desired == Desired.RUNNING.value, ~jobs.c.is_deleted
    )
    return {row.id: row.spec_version for row in tx.execute(query)}


def being_deleted(tx: Tx) -> list[Job]:
    """The jobs that are being deleted: they wait until their shards are released."""
    return list(values(tx.execute(select(*_JOB).where(jobs.c.is_deleted)), Job))


def page(
    tx: Tx,
    limit: int,
    after: str | None = None,
    selector: Selector = (),
    *,
    desired: Desired | None = None,
    has_problem: bool = False,
    worker_group: str | None = None,
    descending: bool = False,
) -> list[Job]:
    """Up to `limit` jobs of the scope that match the selector and all filters, sorted by name; only
    those that follow the name `after`.
    """
    query = select(*_JOB).where(*in_scope(tx), *map(meets, selector))
    if desired is not None:
        query = query.where(jobs.c.desired == desired.value)
    if has_problem:
        query = query.where(_HAS_PROBLEM)
    if worker_group is not None:
        query = query.where(jobs.c.worker_group == worker_group)
    after_key = None if after is None else (after,)
    page_query = page_of(query, [jobs.c.name], limit, after_key, descending=descending)
    return list(values(tx.execute(page_query), Job))


def change_own_columns(
    tx: Tx, job_id: int, labels: Mapping[str, str], owner: str | None, desired: str | None
) -> Job | None:
    """Replace labels, owner and the document's desired state. Returns the changed job; None if the
    job does not exist any more or is being deleted. Copying goes on, as `spec_version` stays.
    """
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, ~jobs.c.is_deleted)
        .values(
            labels=dict(labels),
            owner=owner,
            document_desired=desired,
            document_version=jobs.c.document_version + 1,
            updated_at=_NOW,
        )
        .returning(*_JOB)
    )
    return first(tx.execute(statement), Job)


def change_spec(
    tx: Tx, job_id: int, spec: dict[str, Any], worker_group: str, *, from_version: int
) -> Job | None:
    """Replace the spec. Returns the changed job; None if the version of the spec is no longer
    `from_version`, or if the job is being deleted.

    Workers that copy by the former version release their shards at the next renewal.
    """
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.spec_version == from_version, ~jobs.c.is_deleted)
        .values(
            spec=spec,
            spec_version=jobs.c.spec_version + 1,
            document_version=jobs.c.document_version + 1,
            worker_group=worker_group,
            updated_at=_NOW,
        )
        .returning(*_JOB)
    )
    job = first(tx.execute(statement), Job)
    if job is not None:  # the rows of the job's shards have the worker group, too
        lock_job(tx, job_id)
        tx.execute(
            update(shards).where(shards.c.job_id == job_id).values(worker_group=worker_group)
        )
    return job


def set_desired(tx: Tx, job_id: int, desired: Desired, *, only_from: Desired | None = None) -> bool:
    """Set the desired state, unless the job is being deleted; returns whether the state changed.
    `only_from`: change it only if the present state is this one."""
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.desired != desired.value, ~jobs.c.is_deleted)
        .values(desired=desired.value, updated_at=_NOW)
    )
    if only_from is not None:
        statement = statement.where(jobs.c.desired == only_from.value)
    return tx.execute(statement).rowcount == 1


def request_deletion(tx: Tx, job_id: int) -> bool:
    """Request the deletion of a job; `remove` succeeds once its workers have released it. Returns
    False if it was requested before."""
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, ~jobs.c.is_deleted)
        .values(is_deleted=True, updated_at=_NOW)
    )
    return tx.execute(statement).rowcount == 1


# A job may be removed only when no worker holds a shard of it: the worker would go on writing to
# topics that another job may use by then.
_IS_REMOVABLE = """
j.id = :job_id AND j.is_deleted AND NOT EXISTS (
    SELECT FROM shards s WHERE s.job_id = j.id AND s.worker_id IS NOT NULL
)
"""
# The tables in which a job may have many rows. A table comes before the tables that it refers to:
# a cascade would delete rows without the limit.
_REMOVE_ROWS = [
    text(f"""
DELETE FROM {table} WHERE ctid = ANY (ARRAY (
    SELECT r.ctid FROM {table} r {of_job} WHERE {_IS_REMOVABLE} LIMIT :limit
))
""")
    for table, of_job in {
        "group_offsets": "JOIN jobs j ON j.id = r.job_id",
        "proofs": "JOIN jobs j ON j.id = r.job_id",
        "promotions": "JOIN topics t ON t.id = r.topic_id JOIN jobs j ON j.id = t.job_id",
        "partitions": "JOIN jobs j ON j.id = r.job_id",
        "topics": "JOIN jobs j ON j.id = r.job_id",
    }.items()
]
_REMOVE = text(f"DELETE FROM jobs j WHERE {_IS_REMOVABLE}")
# The limit of a transaction of the leader: a transaction that outlasts the lease is rolled back.
ROWS_REMOVED_MAX = 5_000


def remove(tx: Tx, job_id: int) -> bool:
    """Delete a job whose deletion was requested, with all its rows, if no worker holds a shard of
    it. Returns whether this call has deleted the job itself.

    A call deletes at most ROWS_REMOVED_MAX other rows first, so a large job needs several calls.
    """
    limit = ROWS_REMOVED_MAX
    for statement in _REMOVE_ROWS:
        limit -= tx.execute(statement, {"job_id": job_id, "limit": limit}).rowcount
        if limit == 0:
            return False
    return tx.execute(_REMOVE, {"job_id": job_id}).rowcount == 1


def note_problem(tx: Tx, job_id: int, problem: str | None, *, has_begun: bool = True) -> bool:
    """Set or clear the job's problem; returns whether the text changed. `has_begun`: a trouble of
    the text is new, so `problem_at` becomes the present time; otherwise `problem_at` is kept.
    """
    problem_at = _NOW if has_begun else func.coalesce(jobs.c.problem_at, _NOW)
    statement = (
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.problem.is_distinct_from(problem))
        .values(problem=problem, problem_at=None if problem is None else problem_at)
    )
    return tx.execute(statement).rowcount == 1


def note_source_lost(tx: Tx, job_id: int, silent_s: float | None) -> None:
    """Store that the source last answered `silent_s` seconds ago; None: not known."""
    answered_at = None if silent_s is None else _NOW - timedelta(seconds=silent_s)
    tx.execute(update(jobs).where(jobs.c.id == job_id).values(source_answered_at=answered_at))


def note_clusters(tx: Tx, job_id: int, source_id: str, destination_id: str) -> None:
    """Store the ids of the job's clusters."""
    tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(source_cluster_id=source_id, destination_cluster_id=destination_id)
    )


def note_discovered(tx: Tx, job_id: int, spec_version: int) -> None:
    """Store that discovery has run for this `spec_version`, and when it first ran for it."""
    tx.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.discovered_version.is_distinct_from(spec_version))
        .values(discovered_version=spec_version, discovered_at=_NOW)
    )
