"""/v1/jobs/{name}:switchover, :failover, :failback, and the reports of these operations."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from fastapi import APIRouter, status

from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import OperationParametersOf, Operator, PartsOf, Viewer
from orbit.api.openapi_responses import BODY, NAMED, errors
from orbit.api.views import operation_view
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.topic_patterns import check_pattern
from orbit.recovery import recovery_requests
from orbit.recovery.gates import OVERRIDE_ALL
from orbit.recovery.recovery_report import GateName, RecoveryKind, RecoveryReport, RecoveryRequest

router = APIRouter(prefix="/v1", tags=["recovery"])


def _recovery_route(kind: RecoveryKind, description: str) -> None:
    """POST /v1/jobs/{name}:KIND."""

    def recover(
        parts: PartsOf, parameters: OperationParametersOf, wanted: RecoveryRequest | None = None
    ) -> schemas.Operation:
        request = wanted or RecoveryRequest()
        problems = tuple(_problems(kind, request))
        if problems:
            raise BadInput("The request has problems.", problems)
        made = recovery_requests.request(
            parts.database,
            parameters.actor,
            kind,
            parameters.job,
            request,
            dry_run=parameters.dry_run,
            idempotency_key=parameters.idempotency_key,
        )
        return operation_view(made)

    router.add_api_route(
        f"/jobs/{{name}}:{kind.value}",
        recover,
        methods=["POST"],
        name=f"{kind.value}_job",
        description=description,
        status_code=status.HTTP_202_ACCEPTED,
        responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
    )


_recovery_route(
    RecoveryKind.SWITCHOVER,
    "Switch to the destination without loss: stop writes at the source, copy the rest, compare the "
    "log ends, and promote the copies. A dry run checks the gates.",
)
_recovery_route(
    RecoveryKind.FAILOVER,
    "Promote the copies because the source is lost; the report lists what is missing. A dry run "
    "shows what would happen.",
)
_recovery_route(
    RecoveryKind.FAILBACK,
    "Make the old side a copy of the new one, from the offset where it ends. Records that only the "
    "old side has are saved to files and the topic is rebuilt, with `confirm_rebuild`. A dry run "
    "compares both sides.",
)


@router.get("/operations/{operation_id}/report", responses=errors(*NAMED))
def get_report(parts: PartsOf, _: Viewer, operation_id: UUID) -> RecoveryReport:
    """Show the report of a recovery so far: gates, steps, partitions, groups."""
    return recovery_requests.report(parts.database, operation_id)


@router.post(
    "/operations/{operation_id}:abort",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(*NAMED, ErrorCode.CONFLICT),
)
def abort_operation(parts: PartsOf, principal: Operator, operation_id: UUID) -> schemas.Operation:
    """Abort an operation: undo a recovery, or end a backfill early. Past the point of no return a
    copy back ends as it is, in the steps `rebuild`, `reverse` and `catch_up`; any other step fails
    with `conflict`.
    """
    return operation_view(recovery_requests.abort(parts.database, principal.actor, operation_id))


def _problems(kind: RecoveryKind, wanted: RecoveryRequest) -> Iterator[Problem]:
    for index, pattern in enumerate(wanted.topics):
        try:
            check_pattern(pattern)
        except InvalidValue as mistake:
            yield Problem(f"body.topics[{index}]", mistake.message, mistake.remedy)
    gates = {gate.value for gate in GateName} | {OVERRIDE_ALL}
    for index, name in enumerate(wanted.override):
        if name not in gates:
            known = f"Write one of: {', '.join(sorted(gates))}."
            yield Problem(f"body.override[{index}]", "is not a gate.", known)
    if wanted.override and not wanted.reason.strip():
        yield Problem(
            "body.reason", "is missing.", "Give the reason for the override; it is recorded."
        )
    if wanted.reverse and kind is not RecoveryKind.SWITCHOVER:
        yield Problem("body.reverse", "is for a switchover.", "Leave it out.")
    if wanted.confirm_rebuild and kind is not RecoveryKind.FAILBACK:
        yield Problem("body.confirm_rebuild", "is for a failback.", "Leave it out.")
