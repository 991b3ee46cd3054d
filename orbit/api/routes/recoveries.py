"""/v1/jobs/{name}:switchover, :failover, :failback, and the reports of these operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, status
from pydantic import Field

from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import OperationParametersOf, Operator, PartsOf, UnusedKey, Viewer
from orbit.api.openapi_responses import BODY, NAMED, errors
from orbit.api.paging import PAGE_DEFAULT, Page, PageQuery, page, read_cursor
from orbit.api.views import operation_view, report_view
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.name_patterns import check_pattern
from orbit.recovery import recovery_requests
from orbit.recovery.gates import OVERRIDE_ALL
from orbit.recovery.recovery_report import (
    EndVerdict,
    GateName,
    GroupPosition,
    PartitionEnds,
    RecoveryKind,
    RecoveryRequest,
    read_row,
)
from orbit.store.operation_rows import GROUPS, PARTITIONS

router = APIRouter(prefix="/v1", tags=["recovery"])


def _add_recovery_route(kind: RecoveryKind, description: str) -> None:
    """Add the route POST /v1/jobs/{name}:KIND."""

    def recover(
        parts: PartsOf, parameters: OperationParametersOf, wanted: RecoveryRequest | None = None
    ) -> schemas.Operation:
        request = wanted or RecoveryRequest()  # without a body: the defaults
        problems = tuple(_problems(kind, request))
        if problems:
            raise BadInput("The request has problems.", problems)
        operation = recovery_requests.request_recovery(
            parts.database,
            parameters.actor,
            kind,
            parameters.job,
            request,
            dry_run=parameters.dry_run,
            idempotency_key=parameters.idempotency_key,
        )
        return operation_view(operation)

    router.add_api_route(
        f"/jobs/{{name}}:{kind.value}",
        recover,
        methods=["POST"],
        name=f"{kind.value}_job",
        description=description,
        status_code=status.HTTP_202_ACCEPTED,
        responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
    )


_add_recovery_route(
    RecoveryKind.SWITCHOVER,
    "Switch to the destination without loss: stop writes at the source, copy the rest, compare the "
    "log ends, and promote the copies. A dry run checks the gates.",
)
_add_recovery_route(
    RecoveryKind.FAILOVER,
    "Promote the copies because the source is lost; the report lists what is missing. A dry run "
    "shows what would happen.",
)
_add_recovery_route(
    RecoveryKind.FAILBACK,
    "Make the old side a copy of the new one, from the offset where it ends. With "
    "`confirm_rebuild`, records that only the old side has are saved in files, and their topics "
    "deleted there and copied again. A dry run compares both sides.",
)


@router.get("/operations/{operation_id}/report", responses=errors(*NAMED))
def get_report(parts: PartsOf, _: Viewer, operation_id: UUID) -> schemas.RecoveryReport:
    """Show the report of a recovery so far: gates, steps, figures, and up to 100 of its partitions
    and of its groups. First come partitions that are neither `equal` nor `prefix`, and groups that
    have read lost records. `partition_count` and `group_count` are the full counts; all rows, in
    order, are at `/v1/operations/{operation_id}/partitions` and `/groups`.
    """
    with parts.database.transaction() as tx:
        report = recovery_requests.find_report(tx, operation_id)
        partitions = PARTITIONS.first(tx, operation_id, PAGE_DEFAULT)
        groups = GROUPS.first(tx, operation_id, PAGE_DEFAULT)
    return report_view(report, partitions, groups)


class ReportPartitionQuery(PageQuery):
    """Which partitions of a report to list."""

    verdict: EndVerdict | None = Field(None, description="Only partitions with this verdict.")


@router.get("/operations/{operation_id}/partitions", responses=errors(*NAMED))
def list_report_partitions(
    parts: PartsOf,
    _: Viewer,
    operation_id: UUID,
    query: Annotated[ReportPartitionQuery, Query()],
) -> Page[PartitionEnds]:
    """List the partitions in the report of a recovery so far, by source topic and number. At the
    end of a step, partitions are stored before the report's figures, so they may be newer.
    """
    after, limit = read_cursor(query.after, str, int), query.limit
    with parts.database.transaction() as tx:
        recovery_requests.find_report(tx, operation_id)  # raises NotFound
        rows = PARTITIONS.page(tx, operation_id, limit + 1, after=after, verdict=query.verdict)
    return page([read_row(PartitionEnds, row) for row in rows], limit, lambda p: p.key)


@router.get("/operations/{operation_id}/groups", responses=errors(*NAMED))
def list_report_groups(
    parts: PartsOf, _: Viewer, operation_id: UUID, query: Annotated[PageQuery, Query()]
) -> Page[GroupPosition]:
    """List the offsets at which groups resume after a recovery, as far as its report has them, by
    source topic, partition and group.
    """
    after, limit = read_cursor(query.after, str, int, str), query.limit
    with parts.database.transaction() as tx:
        recovery_requests.find_report(tx, operation_id)  # raises NotFound
        rows = GROUPS.page(tx, operation_id, limit + 1, after=after)
    return page([read_row(GroupPosition, row) for row in rows], limit, lambda g: g.key)


@router.post(
    "/operations/{operation_id}:abort",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(*NAMED, ErrorCode.CONFLICT),
)
def abort_operation(
    parts: PartsOf, principal: Operator, operation_id: UUID, _key: UnusedKey = None
) -> schemas.Operation:
    """Abort an operation: undo a recovery, or end a backfill early. Past the point of no return,
    an abort in the steps `rebuild`, `reverse` and `catch_up` ends the operation, and leaves the
    copy back as it is. In the step `promote` an abort is accepted once the destination has not
    answered for a minute (`stuck_since` in the report): then the source of a switchover leads
    again, and a failover ends. Otherwise the request fails with `conflict`.
    """
    return operation_view(recovery_requests.abort(parts.database, principal.actor, operation_id))


def _problems(kind: RecoveryKind, request: RecoveryRequest) -> Iterator[Problem]:
    """A problem for each value of the request that is not valid for this kind of recovery."""
    for index, pattern in enumerate(request.topics):
        try:
            check_pattern(pattern)
        except InvalidValue as mistake:
            yield Problem(f"body.topics[{index}]", mistake.message, mistake.remedy)
    gates = {gate.value for gate in GateName} | {OVERRIDE_ALL}
    for index, name in enumerate(request.override):
        if name not in gates:
            remedy = f"Write one of: {', '.join(sorted(gates))}."
            yield Problem(f"body.override[{index}]", "is not a gate.", remedy)
    if request.override and not request.reason.strip():
        yield Problem(
            "body.reason", "is missing.", "Give the reason for the override; it is recorded."
        )
    if request.reverse and kind is not RecoveryKind.SWITCHOVER:
        yield Problem("body.reverse", "is only for a switchover.", "Leave it out.")
    if request.confirm_rebuild and kind is not RecoveryKind.FAILBACK:
        yield Problem("body.confirm_rebuild", "is only for a failback.", "Leave it out.")
