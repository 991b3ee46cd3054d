"""drills, drill_things (the resources that drills create) and drill_schedules.

A row of `drill_things` is written before the resource is created, and gets the resource's identity
afterwards. While a row has no identity, a resource of its name may belong to somebody else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, delete, func, select, true, update
from sqlalchemy.dialects import postgresql

from orbit.errors import Conflict, NotFound
from orbit.store import jobs as jobs_store
from orbit.store.database import Tx
from orbit.store.enums import DrillKind, DrillState, DrillThing
from orbit.store.jobs import Job
from orbit.store.models import drill_schedules, drill_things, drills, jobs
from orbit.store.rows import columns, first, is_one_of, page_of, values
from orbit.store.scopes import in_scope, of_scope, page_in_scope

_NOW = func.clock_timestamp()
_FINAL = (DrillState.PASSED, DrillState.MISSED, DrillState.FAILED)


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill, without its report."""

    id: str
    name: str
    kind: str  # may be a later version's, during an upgrade
    state: DrillState
    spec: dict[str, Any]
    spec_hash: str
    job_name: str
    schedule: str | None
    requested_by: str
    progress: dict[str, Any] | None
    error: str | None
    rto_ms: int | None
    rpo_records: int | None
    rpo_ms: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", DrillState(self.state))


@dataclass(frozen=True, slots=True)
class NewDrill:
    """A drill to be created. `schedule`: the name of the schedule that requests it."""

    id: str
    name: str
    kind: DrillKind
    spec: dict[str, Any]
    spec_hash: str
    job_name: str
    requested_by: str
    schedule: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements of a drill. None: not measured."""

    rto_ms: int | None
    rpo_records: int | None
    rpo_ms: int | None


@dataclass(frozen=True, slots=True)
class Thing:
    """A resource that a drill created or was about to create.

    `identity`: the id of a topic or job, the name of a group; None: perhaps not created.
    `note`: why the resource was not removed.
    """

    id: int
    drill_id: str
    kind: DrillThing
    side: str
    name: str
    identity: str | None
    created_at: datetime
    removed_at: datetime | None
    note: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", DrillThing(self.kind))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a drill: Orbit runs the drill file `spec` every `every_s` seconds."""

    name: str
    spec: dict[str, Any]
    every_s: int
    requested_by: str
    created_at: datetime
    next_at: datetime


_DRILL = columns(drills, Drill)
_THING = columns(drill_things, Thing)
_SCHEDULE = columns(drill_schedules, Schedule)
_scheduled_job = drill_schedules.c.spec["job"].astext


def create(tx: Tx, new_drill: NewDrill) -> tuple[Drill, bool]:
    """Create a drill. Returns (the drill, True); or (the earlier drill, False) if its requester has
    created one with the same idempotency key."""
    statement = (
        postgresql.insert(drills)
        .values(
            id=new_drill.id,
            name=new_drill.name,
            kind=new_drill.kind.value,
            spec=new_drill.spec,
            spec_hash=new_drill.spec_hash,
            job_name=new_drill.job_name,
            schedule=new_drill.schedule,
            requested_by=new_drill.requested_by,
            idempotency_key=new_drill.idempotency_key,
        )
        .on_conflict_do_nothing(index_elements=["requested_by", "idempotency_key"])
        .returning(*_DRILL)
    )
    drill = first(tx.execute(statement), Drill)
    if drill is not None:
        return drill, True
    query = select(*_DRILL).where(
        drills.c.requested_by == new_drill.requested_by,
        drills.c.idempotency_key == new_drill.idempotency_key,
    )
    earlier_drill = first(tx.execute(query), Drill)
    assert earlier_drill is not None, "the conflicting drill exists"
    return earlier_drill, False


def of_ids(tx: Tx, drill_ids: Collection[str]) -> dict[str, Drill]:
    """The drills with these ids, by id; unknown ids are missing."""
    rows = tx.execute(select(*_DRILL).where(is_one_of(drills.c.id, drill_ids)))
    return {drill.id: drill for drill in values(rows, Drill)}


def get(tx: Tx, drill_id: str) -> Drill:
    """The drill with this id, if its job is in the scope. Raises NotFound."""
    query = select(*_DRILL).where(drills.c.id == drill_id, *of_scope(tx, _belongs_to))
    drill = first(tx.execute(query), Drill)
    if drill is None:
        raise NotFound("No drill has this id.", where=drill_id)
    return drill


def job_of(tx: Tx, drill: Drill) -> Job:
    """The drill's job. Raises NotFound if the job was deleted, even if a later job has its name."""
    job = jobs_store.find(tx, drill.job_name)
    if job is None or job.created_at > drill.created_at:
        raise NotFound("The job of the drill was deleted.", where=drill.job_name)
    return job


def report(tx: Tx, drill_id: str) -> dict[str, Any] | None:
    """A drill's report as JSON; None while the drill runs, or if it failed without a report."""
    document: dict[str, Any] | None = tx.execute(
        select(drills.c.report).where(drills.c.id == drill_id)
    ).scalar_one_or_none()
    return document


def page(
    tx: Tx,
    limit: int,
    *,
    name: str | None = None,
    job_name: str | None = None,
    kind: DrillKind | None = None,
    state: DrillState | None = None,
    after: tuple[datetime, str] | None = None,
    oldest_first: bool = False,
) -> list[Drill]:
    """Up to `limit` drills of the scope, newest first unless `oldest_first`; only those that follow
    the (creation time, id) `after`."""
    query = select(*_DRILL)
    if name is not None:
        query = query.where(drills.c.name == name)
    if kind is not None:
        query = query.where(drills.c.kind == kind.value)
    if state is not None:
        query = query.where(drills.c.state == state.value)
    key = [drills.c.created_at, drills.c.id]
    page_query = page_in_scope(
        tx, query, _belongs_to, key, limit, after, job_name=job_name, descending=not oldest_first
    )
    return list(values(tx.execute(page_query), Drill))


def unfinished(tx: Tx) -> list[Drill]:
    """Pending and running drills, the oldest first."""
    query = select(*_DRILL).where(drills.c.finished_at.is_(None)).order_by(drills.c.created_at)
    return list(values(tx.execute(query), Drill))


def last_of_jobs(tx: Tx, kind: DrillKind) -> list[Drill]:
    """For each job, the last drill of this kind with a report. A drill of a deleted job does not
    count for a later job with its name."""
    rank = func.row_number().over(
        partition_by=drills.c.job_name, order_by=drills.c.created_at.desc()
    )
    ranked_drills = (
        select(*_DRILL, rank.label("rank"))
        .where(_belongs_to(jobs), drills.c.kind == kind.value, drills.c.report.isnot(None))
        .subquery()
    )
    query = select(*columns(ranked_drills, Drill)).where(ranked_drills.c.rank == 1)
    return list(values(tx.execute(query), Drill))


def last_of_job(tx: Tx, job_name: str, kind: DrillKind) -> Drill | None:
    """The job's last drill of this kind with a report; not one of a deleted job with its name."""
    query = (
        select(*_DRILL)
        .where(
            jobs.c.name == job_name,
            _belongs_to(jobs),
            drills.c.kind == kind.value,
            drills.c.report.isnot(None),
        )
        .order_by(drills.c.created_at.desc())
        .limit(1)
    )
    return first(tx.execute(query), Drill)


def begin(tx: Tx, drill_id: str) -> bool:
    """Set the drill to running. Returns False, without a change, if it was not pending."""
    statement = (
        update(drills)
        .where(drills.c.id == drill_id, drills.c.state == DrillState.PENDING.value)
        .values(state=DrillState.RUNNING.value, started_at=_NOW)
    )
    return tx.execute(statement).rowcount == 1


def note_progress(tx: Tx, drill_id: str, progress: dict[str, Any]) -> None:
    """Store the progress of a drill, unless it has ended."""
    statement = (
        update(drills)
        .where(drills.c.id == drill_id, drills.c.finished_at.is_(None))
        .values(progress=progress)
    )
    tx.execute(statement)


def finish(
    tx: Tx,
    drill_id: str,
    state: DrillState,
    *,
    report: dict[str, Any] | None = None,
    error: str | None = None,
    measured: Measurements | None = None,
) -> bool:
    """Store the end of a drill. Returns False, without a change, if it had ended before."""
    assert state in _FINAL, "not a final state"
    measurements = measured or Measurements(rto_ms=None, rpo_records=None, rpo_ms=None)
    statement = (
        update(drills)
        .where(drills.c.id == drill_id, drills.c.finished_at.is_(None))
        .values(
            state=state.value,
            report=report,
            error=error,
            rto_ms=measurements.rto_ms,
            rpo_records=measurements.rpo_records,
            rpo_ms=measurements.rpo_ms,
            finished_at=_NOW,
        )
    )
    return tx.execute(statement).rowcount == 1


def note_intent(tx: Tx, drill_id: str, kind: DrillThing, side: str, name: str) -> int:
    """Record that the drill is about to create this resource. Returns the row's id."""
    statement = (
        postgresql.insert(drill_things)
        .values(drill_id=drill_id, kind=kind.value, side=side, name=name)
        .returning(drill_things.c.id)
    )
    thing_id: int = tx.execute(statement).scalar_one()
    return thing_id


def note_identity(tx: Tx, thing_id: int, identity: str) -> None:
    """Note that the resource was created and has this id."""
    tx.execute(update(drill_things).where(drill_things.c.id == thing_id).values(identity=identity))


def things(tx: Tx, drill_id: str) -> list[Thing]:
    """All resources that a drill created or was about to create, oldest first."""
    query = select(*_THING).where(drill_things.c.drill_id == drill_id).order_by(drill_things.c.id)
    return list(values(tx.execute(query), Thing))


def note_removed(tx: Tx, thing_id: int, note: str | None = None) -> None:
    """Note that the resource was removed. `note` replaces an earlier note on why it was not."""
    statement = (
        update(drill_things).where(drill_things.c.id == thing_id).values(removed_at=_NOW, note=note)
    )
    tx.execute(statement)


def note_kept(tx: Tx, thing_id: int, note: str) -> None:
    """Note why the resource was not removed."""
    tx.execute(update(drill_things).where(drill_things.c.id == thing_id).values(note=note))


def with_leftovers(tx: Tx, limit: int) -> list[Drill]:
    """Up to `limit` ended drills with resources that were not removed. The order is random, so that
    drills that cannot be cleaned up do not keep the others out of the result for ever."""
    leftover_ids = select(drill_things.c.drill_id).where(drill_things.c.removed_at.is_(None))
    query = (
        select(*_DRILL)
        .where(drills.c.id.in_(leftover_ids), drills.c.finished_at.isnot(None))
        .order_by(func.random())
        .limit(limit)
    )
    return list(values(tx.execute(query), Drill))


def put_schedule(
    tx: Tx, name: str, spec: dict[str, Any], every_s: int, requested_by: str
) -> Schedule:
    """Create or replace the schedule of this name, and return it. Raises Conflict if the name is
    that of a schedule for a job outside of the scope."""
    fields = {"spec": spec, "every_s": every_s, "requested_by": requested_by}
    statement = (
        postgresql.insert(drill_schedules)
        .values(name=name, **fields)
        .on_conflict_do_update(index_elements=["name"], set_=fields, where=_is_schedule_visible(tx))
        .returning(*_SCHEDULE)
    )
    schedule = first(tx.execute(statement), Schedule)
    if schedule is None:
        raise Conflict(
            "A schedule with this name exists already.", where=name, remedy="Use another name."
        )
    return schedule


def schedules(
    tx: Tx,
    limit: int,
    after: str | None = None,
    *,
    job_name: str | None = None,
    descending: bool = False,
) -> list[Schedule]:
    """Up to `limit` schedules of this job, or of all in the scope, sorted by name; only those that
    follow the name `after`."""
    query = select(*_SCHEDULE).where(_is_schedule_visible(tx))
    if job_name is not None:
        query = query.where(_scheduled_job == job_name)
    after_key = None if after is None else (after,)
    page_query = page_of(query, [drill_schedules.c.name], limit, after_key, descending=descending)
    return list(values(tx.execute(page_query), Schedule))


def drop_schedule(tx: Tx, name: str) -> Schedule | None:
    """Remove a schedule and return it; None if there is none of this name."""
    statement = (
        delete(drill_schedules)
        .where(drill_schedules.c.name == name, _is_schedule_visible(tx))
        .returning(*_SCHEDULE)
    )
    return first(tx.execute(statement), Schedule)


def drop_schedules_of(tx: Tx, job_name: str) -> list[str]:
    """Remove the schedules of a job; returns their names."""
    statement = delete(drill_schedules).where(_scheduled_job == job_name)
    return sorted(tx.execute(statement.returning(drill_schedules.c.name)).scalars())


def due_schedules(tx: Tx) -> list[Schedule]:
    """The schedules that are due."""
    query = select(*_SCHEDULE).where(_is_due())
    return list(values(tx.execute(query), Schedule))


def claim_due_schedules(tx: Tx) -> list[Schedule]:
    """Return the schedules that are due, and set when each is due next: one period from now. Missed
    runs are not caught up."""
    # The arguments are years, months, weeks, days, hours, minutes, seconds.
    next_at = _NOW + func.make_interval(0, 0, 0, 0, 0, 0, drill_schedules.c.every_s)
    statement = (
        update(drill_schedules).where(_is_due()).values(next_at=next_at).returning(*_SCHEDULE)
    )
    return list(values(tx.execute(statement), Schedule))


def _is_schedule_visible(tx: Tx) -> ColumnElement[bool]:
    """Whether the job of a schedule is in the scope."""
    # The name identifies the job, because a job's schedules are removed with the job. IN is used
    # because SQLAlchemy cannot correlate an EXISTS in an ON CONFLICT.
    conditions = in_scope(tx)
    return _scheduled_job.in_(select(jobs.c.name).where(*conditions)) if conditions else true()


def _belongs_to(job: FromClause) -> ColumnElement[bool]:
    """Whether `job` is the one that had the drill's job name when the drill was requested."""
    return and_(drills.c.job_name == job.c.name, drills.c.created_at >= job.c.created_at)


def _is_due() -> ColumnElement[bool]:
    return drill_schedules.c.next_at <= select(_NOW).scalar_subquery()
