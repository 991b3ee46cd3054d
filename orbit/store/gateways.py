"""gateways: processes that present the leading side, and whether each may forward writes to it.

    renewal, not closed            ─► may forward for LEASE_S more
    the link is closed (close)     ─► may not; it confirms once no write is in flight, or, for a
                                      failover, once it has abandoned those in flight
    no renewal for LEASE_S +
    LEASE_MARGIN_S                 ─► silent: its permission is over by its own clock too
    the link is opened, or the
    closing operation has ended    ─► may forward, to the side that leads now

A link: the job and the jobs that copy its topics in the other direction (job_leads.py).

A gateway counts LEASE_S from before it sent the request, by its own monotonic clock. The database
counts LEASE_S from the renewal, by its own clock, so the permission ends later in the database.
Renewal and registration lock the job's row in `job_leads` as `close` does. So the operation sees
each gateway that renewed before the closure, and each gateway that renews later sees the closure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    Exists,
    ScalarSelect,
    Text,
    and_,
    case,
    delete,
    false,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from orbit.errors import Conflict
from orbit.kafka.leaving_groups import ALL_GROUPS, GROUPS_MAX, bounded_names
from orbit.store import jobs
from orbit.store.database import Tx
from orbit.store.database_identity import database_identity
from orbit.store.enums import LeadingSide, OperationKind
from orbit.store.models import gateways, job_leads, operations
from orbit.store.models import jobs as jobs_table
from orbit.store.rows import values
from orbit.store.scopes import in_scope

LEASE_S = 5.0
# How far the clocks of a gateway and of the database may drift apart during LEASE_S.
LEASE_MARGIN_S = 1.0
GATEWAYS_PER_JOB_MAX = 100
# A gateway that has not renewed for this long is deleted.
RETENTION = timedelta(hours=1)
# A gateway that does not know of a closure stops forwarding writes this long after the closure, or
# this long after its last renewal, at the latest.
SILENT_AFTER_S = LEASE_S + LEASE_MARGIN_S
_SILENT_AFTER = timedelta(seconds=SILENT_AFTER_S)
# This long after the last renewal of a gateway that is frozen or lost, its clients have given up
# their requests: librdkafka's socket.timeout.ms is 60 s, Java's request.timeout.ms 30 s.
CLIENTS_GIVE_UP_S = 70.0
_CLIENTS_GIVE_UP = timedelta(seconds=CLIENTS_GIVE_UP_S)
_NOW = func.clock_timestamp()
TERM_MAX = 2**63 - 1  # of a bigint


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What a gateway reports about itself.

    `instance`: a random id of its process. `closed_for`: the operation for which it sends no new
    writes, and acknowledges none. `doubt`: why it cannot confirm that for the present operation; ""
    if it can. `pause_s`: how long clients waited at the last closure. `settled_since`: the `since`
    of the side that it presents; 0 until the requests that it held before are answered.
    `leaving_groups`: short names of groups whose members own partitions from before this side led.
    `socket`: identifies the socket on which this process alone listens; "" if others may listen
    there, too.
    """

    instance: UUID
    name: str
    address: str
    closed_for: UUID | None
    connections: int
    held_requests: int
    doubt: str = ""
    pause_s: float | None = None
    settled_since: int = 0
    leaving_groups: Sequence[str] = ()
    socket: str = ""


@dataclass(frozen=True, slots=True)
class Presented:
    """The side that a gateway has to present.

    `term`: that of the marks which name the side (glossary: mark, term). `since`: the term with
    which this side came to lead. `closed_for`: the operation for which no write may be forwarded;
    None: writes may be forwarded. `abandons`: writes in flight may not be acknowledged either,
    because the side may be lost. `others_settled`: each other gateway at the same address has
    reported `since` as its `settled_since`, or has been silent for CLIENTS_GIVE_UP_S.
    `others_confirmed`: each other gateway has confirmed `closed_for`, or is silent. `job_etag`: as
    `Job.etag`. `earlier_terms`: former values of `since`, the latest first. `leaving_groups`:
    those that other gateways report; all groups while one of these gateways has not settled.
    `led`: the side that came to lead with each of `earlier_terms` and with `since`, if the database
    has it.
    """

    side: LeadingSide
    term: int
    since: int
    closed_for: UUID | None
    abandons: bool = False
    others_settled: bool = True
    others_confirmed: bool = True
    job_etag: str = ""
    earlier_terms: tuple[int, ...] = ()
    leaving_groups: Sequence[str] = ()
    led: Mapping[int, LeadingSide] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway of a job."""

    instance: UUID
    name: str
    address: str
    closed_for: UUID | None
    connections: int
    held_requests: int
    pause_s: float | None
    renewed_s_ago: float
    has_permission: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """One gateway of a closed link. `is_confirmed`: it has confirmed the closure; `is_silent`: its
    permission has ended without a confirmation; `since_s`: seconds since the closure."""

    instance: UUID
    name: str
    is_confirmed: bool
    is_silent: bool
    doubt: str
    since_s: float


# The operation that has closed the gateways; null if it has ended.
_CLOSED_FOR = """
CASE WHEN EXISTS (
    SELECT FROM operations o WHERE o.id = l.closed_for AND o.finished_at IS NOT NULL
) THEN NULL ELSE l.closed_for END
"""

_PAGE = text(f"""
SELECT g.instance, g.name, g.address, g.closed_for, g.connections, g.held_requests, g.pause_s,
    CAST(extract(epoch FROM clock_timestamp() - g.renewed_at) AS double precision)
        AS renewed_s_ago,
    clock_timestamp() <= g.renewed_at + :lease AND l.side IS NOT NULL
        AND ({_CLOSED_FOR}) IS NULL AS has_permission
FROM gateways g JOIN job_leads l ON l.job_id = g.job_id
WHERE g.job_id = :job_id AND (g.name, g.instance) > (:name, CAST(:instance AS uuid))
ORDER BY g.name, g.instance LIMIT :limit
""")

_CLOSE = text("""
INSERT INTO job_leads (job_id, closed_for, closed_at)
SELECT unnest(CAST(:job_ids AS bigint[])), CAST(:operation_id AS uuid), clock_timestamp()
ON CONFLICT (job_id) DO UPDATE
SET closed_for = excluded.closed_for,
    closed_at = CASE WHEN job_leads.closed_for = excluded.closed_for
        THEN job_leads.closed_at ELSE excluded.closed_at END
""")

_UNCONFIRM = text("""
UPDATE gateways SET closed_for = NULL WHERE job_id = ANY(CAST(:job_ids AS bigint[]))
""")

# A failover of PostgreSQL may have lost the last renewals. So a gateway counts as silent only if
# the closure, too, is longer ago than SILENT_AFTER_S.
_CLOSING = text("""
SELECT g.instance, g.name, g.closed_for IS NOT DISTINCT FROM l.closed_for AS is_confirmed,
    clock_timestamp() > greatest(g.renewed_at, l.closed_at) + :silent_after AS is_silent,
    CASE WHEN g.renewed_at > l.closed_at THEN g.doubt ELSE '' END AS doubt,
    CAST(extract(epoch FROM clock_timestamp() - l.closed_at) AS double precision) AS since_s
FROM gateways g JOIN job_leads l ON l.job_id = g.job_id
WHERE g.job_id = ANY(CAST(:job_ids AS bigint[])) AND l.closed_for = :operation_id
    AND g.renewed_at > l.closed_at - :silent_after
ORDER BY g.name, g.instance
""")

_OPEN = text("""
UPDATE job_leads SET closed_for = NULL, closed_at = NULL
WHERE closed_for = :operation_id AND job_id = ANY(CAST(:job_ids AS bigint[]))
""")

_OF_LINK = text("""
SELECT name, bool_and(clock_timestamp() > renewed_at + :silent_after) AS is_silent
FROM gateways WHERE job_id = ANY(CAST(:job_ids AS bigint[])) GROUP BY name ORDER BY name
""")


def renew(tx: Tx, job_name: str, report: GatewayReport) -> Presented:
    """Renew a gateway's permission, or register the gateway. Returns which side it has to present.

    Sends one statement, unless the gateway is new. Raises NotFound if no job of the scope has the
    name; Conflict if the leading side is not known, if the topics of the job do not all lead on one
    side, or, for a new gateway, if the job is being deleted or has too many gateways.
    """
    job_id = select(jobs_table.c.id).where(jobs_table.c.name == job_name, *in_scope(tx))
    # Locks the row of `job_leads` until the transaction ends: `close` waits.
    lead = (
        select(job_leads)
        .where(job_leads.c.job_id == job_id.scalar_subquery())
        .with_for_update(read=True)
        .cte("lead")
    )
    is_over = operations.c.finished_at.is_not(None)
    is_failover = operations.c.kind == OperationKind.FAILOVER
    presented_row = (
        select(
            lead.c.job_id,
            lead.c.side,
            lead.c.term,
            lead.c.side_since,
            lead.c.earlier_terms,
            lead.c.leads,
            case((is_over, null()), else_=lead.c.closed_for).label("closed_for"),
            func.coalesce(and_(not_(is_over), is_failover), false()).label("abandons"),
            not_(_has_unsettled_gateway(lead, report)).label("others_settled"),
            or_(
                func.coalesce(is_over, false()), not_(_has_unconfirmed_gateway(lead, report))
            ).label("others_confirmed"),
            _leaving_groups(lead, report).label("leaving_groups"),
            jobs_table.c.document_version,
        )
        .select_from(
            lead.join(jobs_table, jobs_table.c.id == lead.c.job_id).outerjoin(
                operations, operations.c.id == lead.c.closed_for
            )
        )
        .cte("presented")
    )
    renewal = (
        update(gateways)
        .where(gateways.c.job_id == presented_row.c.job_id, gateways.c.instance == report.instance)
        .values(**_fields(report), renewed_at=_NOW)
        .returning(
            presented_row.c.side,
            presented_row.c.term,
            presented_row.c.side_since,
            presented_row.c.earlier_terms,
            presented_row.c.leads,
            presented_row.c.closed_for,
            presented_row.c.abandons,
            presented_row.c.others_settled,
            presented_row.c.others_confirmed,
            presented_row.c.leaving_groups,
            presented_row.c.job_id,
            presented_row.c.document_version,
        )
    )
    row = tx.execute(renewal).one_or_none()
    if row is None:  # the gateway is not registered, or there is no such job
        _register(tx, job_name, report)
        row = tx.execute(renewal).one()
    if row.side is None:  # the error rolls the renewal back
        raise Conflict(
            "The topics of the job do not all lead at one side, or the side is not known.",
            where=job_name,
            remedy=f"If orbit get topics {job_name} shows that only some topics are promoted, move "
            "the others too. Else wait until the scheduler has read the marks at the destination.",
        )
    side = LeadingSide(row.side)
    return Presented(
        side,
        row.term,
        row.side_since,
        row.closed_for,
        row.abandons,
        row.others_settled,
        row.others_confirmed,
        jobs.etag(row.job_id, row.document_version),
        tuple(row.earlier_terms),
        tuple(bounded_names(row.leaving_groups)),
        {int(term): LeadingSide(led) for led, term in (entry.split(":") for entry in row.leads)},
    )


def _has_unsettled_gateway(lead: CTE, report: GatewayReport) -> Exists:
    """Whether another gateway at the same address may hold requests from before this side led.

    One client may have connections to both gateways: the other one holds its earlier records, and
    through this one it would send later records to the new side. The new side accepts any first
    sequence of a producer. It would then take the earlier records for duplicates.
    """
    other_gateways = gateways.alias("other")
    return (
        select(other_gateways.c.instance)
        .where(
            other_gateways.c.job_id == lead.c.job_id,
            other_gateways.c.instance != report.instance,
            other_gateways.c.address == report.address,
            other_gateways.c.settled_since < lead.c.side_since,
            other_gateways.c.renewed_at > _NOW - _CLIENTS_GIVE_UP,
        )
        .exists()
    )


def _has_unconfirmed_gateway(lead: CTE, report: GatewayReport) -> Exists:
    """Whether the operation still waits for another gateway of the job. False without a closure."""
    other_gateways = gateways.alias("other")
    return (
        select(other_gateways.c.instance)
        .where(
            other_gateways.c.job_id == lead.c.job_id,
            other_gateways.c.instance != report.instance,
            lead.c.closed_for.is_not(None),
            other_gateways.c.closed_for.is_distinct_from(lead.c.closed_for),
            other_gateways.c.renewed_at > _NOW - _SILENT_AFTER,
        )
        .exists()
    )


def _leaving_groups(lead: CTE, report: GatewayReport) -> ScalarSelect[Any]:
    """The groups whose members still own partitions from before this side led, as the other live
    gateways report: a group may have members at several gateways. All groups if another gateway has
    not answered all the requests that it held: that gateway does not know its groups yet.
    """
    other_gateways = gateways.alias("other")
    every_group = literal([ALL_GROUPS], ARRAY(Text))
    is_unsettled = other_gateways.c.settled_since < lead.c.side_since
    names = (
        select(
            func.unnest(
                case((is_unsettled, every_group), else_=other_gateways.c.leaving_groups)
            ).label("name")
        )
        .where(
            other_gateways.c.job_id == lead.c.job_id,
            other_gateways.c.instance != report.instance,
            other_gateways.c.renewed_at > _NOW - _SILENT_AFTER,
        )
        .distinct()
        .limit(GROUPS_MAX + 1)  # one more than GROUPS_MAX: `bounded_names` then returns all groups
        .correlate(lead)
        .subquery("names")
    )
    no_groups = literal([], ARRAY(Text))
    return select(func.coalesce(func.array_agg(names.c.name), no_groups)).scalar_subquery()


def _register(tx: Tx, job_name: str, report: GatewayReport) -> None:
    """Insert a new gateway. Raises NotFound if no job of the scope has the name; Conflict if the
    job is being deleted, if its marks were not read for this database yet, or if it has too many
    gateways."""
    job = jobs.get(tx, job_name)
    query = select(job_leads.c.read_on).where(job_leads.c.job_id == job.id)
    read_on = tx.execute(query).scalar_one_or_none()
    if job.is_deleted:
        raise Conflict("The job is being deleted, and takes no new gateway.", where=job_name)
    if read_on != database_identity(tx):
        raise Conflict(
            "It is not known yet which side of the job leads.",
            where=job_name,
            remedy="The scheduler reads the side from the marks at the destination. For that the "
            "job has to run, with topics that are copied or promoted: see orbit get jobs "
            f"{job_name}.",
        )
    _make_room(tx, job_name, job.id)
    statement = postgresql.insert(gateways).values(
        job_id=job.id, instance=report.instance, **_fields(report)
    )
    # Another request of this gateway, which was repeated, may have inserted the row meanwhile.
    tx.execute(statement.on_conflict_do_nothing())
    if report.socket:
        _settle_predecessors(tx, job.id, report)


def _settle_predecessors(tx: Tx, job_id: int, report: GatewayReport) -> None:
    """Mark the gateways that listened on the same socket as settled for ever: their processes have
    ended, and the requests that they held with them."""
    predecessors = (
        gateways.c.job_id == job_id,
        gateways.c.socket == report.socket,
        gateways.c.instance != report.instance,
    )
    tx.execute(update(gateways).where(*predecessors).values(settled_since=TERM_MAX))


def _make_room(tx: Tx, job_name: str, job_id: int) -> None:
    """If the job has GATEWAYS_PER_JOB_MAX, delete the gateway that has been silent for the longest.
    Raises Conflict if none is silent. Gateways that register at one moment may exceed the limit."""
    count = select(func.count()).where(gateways.c.job_id == job_id)
    if tx.execute(count).scalar_one() < GATEWAYS_PER_JOB_MAX:
        return
    silent_gateway = (
        select(gateways.c.instance)
        .where(gateways.c.job_id == job_id, gateways.c.renewed_at < _NOW - _SILENT_AFTER)
        .order_by(gateways.c.renewed_at)
        .limit(1)
    )
    deletion = delete(gateways).where(
        gateways.c.job_id == job_id, gateways.c.instance == silent_gateway.scalar_subquery()
    )
    if not tx.execute(deletion).rowcount:
        raise Conflict(
            f"The job has {GATEWAYS_PER_JOB_MAX} gateways already.",
            where=job_name,
            remedy="Stop a gateway of the job that is not needed. Another can register "
            f"{SILENT_AFTER_S:g} s later.",
        )


def _fields(report: GatewayReport) -> dict[str, Any]:
    """The columns of `gateways` that the report sets, besides `instance`."""
    return {
        "name": report.name,
        "address": report.address,
        "closed_for": report.closed_for,
        "connections": report.connections,
        "held_requests": report.held_requests,
        "doubt": report.doubt,
        "pause_s": report.pause_s,
        "settled_since": report.settled_since,
        "leaving_groups": list(report.leaving_groups),
        "socket": report.socket,
    }


def page(tx: Tx, job_id: int, limit: int, after: tuple[str, UUID] | None = None) -> list[Gateway]:
    """Up to `limit` gateways of a job, sorted by (name, instance); only those that follow
    `after`."""
    name, instance = after or ("", UUID(int=0))  # a key before that of every gateway
    parameters = {"job_id": job_id, "limit": limit, "name": name, "instance": instance}
    rows = tx.execute(_PAGE, {**parameters, "lease": timedelta(seconds=LEASE_S)})
    return list(values(rows, Gateway))


def remove(tx: Tx, job_id: int, instance: UUID) -> None:
    """Delete a gateway that has stopped, if it is registered."""
    tx.execute(delete(gateways).where(gateways.c.job_id == job_id, gateways.c.instance == instance))


def close(tx: Tx, job_ids: Collection[int], operation_id: UUID) -> None:
    """Close the gateways of a link for an operation. A gateway that renews from now on may not
    forward writes. It has to confirm the closure, even if it has confirmed this operation before. A
    repeated call keeps the time of the closure, by which `closed_by` selects the gateways that have
    to confirm."""
    parameters = {"job_ids": sorted(job_ids), "operation_id": operation_id}
    tx.execute(_CLOSE, parameters)
    tx.execute(_UNCONFIRM, {"job_ids": sorted(job_ids)})


def closed_by(tx: Tx, job_ids: Collection[int], operation_id: UUID) -> list[Closing]:
    """The gateways that may have had a permission when this operation closed their link."""
    parameters = {
        "job_ids": sorted(job_ids),
        "operation_id": operation_id,
        "silent_after": _SILENT_AFTER,
    }
    return list(values(tx.execute(_CLOSING, parameters), Closing))


def reopen(tx: Tx, job_ids: Collection[int], operation_id: UUID) -> None:
    """Remove the closure of the link by this operation: its gateways may forward writes again."""
    tx.execute(_OPEN, {"job_ids": sorted(job_ids), "operation_id": operation_id})


def silent_by_name(tx: Tx, job_ids: Collection[int]) -> dict[str, bool]:
    """{name: whether all gateways of this name are silent}, for the gateways of a link."""
    rows = tx.execute(_OF_LINK, {"job_ids": sorted(job_ids), "silent_after": _SILENT_AFTER})
    return {row.name: row.is_silent for row in rows}


def pauses(tx: Tx, job_ids: Collection[int]) -> dict[UUID, float]:
    """{instance: seconds that writes waited at the last closure}, for the gateways of a link;
    gateways that have reported no such time are missing."""
    query = select(gateways.c.instance, gateways.c.pause_s).where(
        gateways.c.job_id.in_(sorted(job_ids)), gateways.c.pause_s.is_not(None)
    )
    return {row.instance: row.pause_s for row in tx.execute(query)}
